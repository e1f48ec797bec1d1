"""Faults at random: workers, hosts and the GCS are killed, and come back.

- worker: SIGKILL to a worker that runs a task or holds an actor, dstack's own probes included. Ray starts another.
- host: all its processes end at once, and its connections are closed. A while later a new host with the same custom
  resources joins in its place. Nothing announces it: there is no autoscaler.
- power: a host is cut off from the network, and killed later; its peers learn nothing of it. A new host joins likewise.
- GCS: SIGKILL. It is started again up to ten seconds later, with its state in Redis.

The head's host with the drivers stays.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.clusters.ray_clusters import busy_workers
from tests.hosts import Hosts
from tests.hosts.hosts import Joining
from tests.processes import command_line

EVERY_S = {"worker": 12.0, "host": 90.0, "power": 240.0, "gcs": 180.0}
"""Mean time between two faults of a kind."""
GCS_AWAY_S = (0.5, 10.0)
CUT_OFF_S = (10.0, 100.0)
REPLACED_S = (0.0, 60.0)
"""How long after a host was lost another begins to join."""
JOIN_S = 90.0
"""Deadline for a new host to join."""
GCS_BACK_S = 20.0
"""How long after its start the GCS may still be refusing or incomplete."""
FEWEST_HOSTS = 2


@dataclass(frozen=True)
class Fault:
    """What was done, and when, by ``time.monotonic()``."""

    at: float
    kind: str
    what: str


@dataclass
class _GcsAway:
    command: Sequence[str]
    environment: Mapping[str, str]
    back_at: float


class Faults:
    """Does what is due at each :meth:`step`; ``done`` has all faults so far."""

    def __init__(self, hosts: Hosts, kinds: Collection[str], say: Callable[[str], None]) -> None:
        self._hosts = hosts
        self.say = say
        now = time.monotonic()
        self._due = {kind: now + random.uniform(0.2, 0.6) * EVERY_S[kind] for kind in kinds}
        self._joining: dict[Joining, float] = {}
        self._cut_off: dict[int, float] = {}
        self._lost: dict[int, float] = {}
        self._gcs: _GcsAway | None = None
        self._gcs_away: list[tuple[float, float]] = []
        self.done: list[Fault] = []
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """Begin the faults that are due, and end those that are over."""
        now = time.monotonic()
        self.mend()
        for kind, due_at in self._due.items():
            if now >= due_at:
                self._due[kind] = now + random.uniform(0.4, 1.6) * EVERY_S[kind]
                self._begin(kind)

    def mend(self, *, at_once: bool = False) -> None:
        """End the faults that are over, or all, and replace hosts."""
        now = time.monotonic()
        if self._gcs is not None and (at_once or now >= self._gcs.back_at):
            self._start_gcs(self._gcs)
        for number, kill_at in list(self._cut_off.items()):
            if at_once or now >= kill_at:
                del self._cut_off[number]
                self._hosts.kill(number)
        self._mind_joining(now)
        for number, replace_at in list(self._lost.items()):
            if at_once or now >= replace_at:
                del self._lost[number]
                self._joining[self._hosts.add(in_place_of=number)] = now + JOIN_S

    @property
    def is_over(self) -> bool:
        """Whether no fault is going on."""
        return self._gcs is None and not self._cut_off and not self._lost and not self._joining

    def gcs_was_away(self, since: float, until: float) -> bool:
        """Whether the GCS was away, or just back, at any time between these."""
        return any(began <= until and since <= ended + GCS_BACK_S for began, ended in self._gcs_away)

    def before(self, at: float, within_s: float) -> list[Fault]:
        """The faults of the last ``within_s`` seconds before ``at``."""
        return [fault for fault in self.done if at - within_s <= fault.at <= at]

    def _begin(self, kind: str) -> None:
        match kind:
            case "worker":
                self._kill_worker()
            case "gcs":
                self._kill_gcs()
            case _:
                self._kill_host(is_silent=kind == "power")

    def _note(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self.done.append(Fault(time.monotonic(), kind, what))
        self.say(f"killed: {what}")

    def _kill_worker(self) -> None:
        titles = {worker: " ".join(command_line(worker)) for worker in busy_workers(self._hosts.tag)}
        alive = [worker for worker, title in titles.items() if title]
        if not alive:
            return
        victim = random.choice(alive)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
            is_probe = "Probe" in titles[victim]
            self._note("probe" if is_probe else "worker", f"worker {titles[victim]} (pid {victim.pid})")

    def _kill_gcs(self) -> None:
        if self._gcs is not None:
            return
        process = self._hosts.gcs()
        command, environment = process.cmdline(), process.environ()
        self._gcs_away.append((time.monotonic(), float("inf")))
        process.kill()
        process.wait(10)
        away_s = random.uniform(*GCS_AWAY_S)
        self._gcs = _GcsAway(command, environment, time.monotonic() + away_s)
        self._note("gcs", f"GCS, for {away_s:.1f} s")

    def _start_gcs(self, away: _GcsAway) -> None:
        self._hosts.start_gcs(away.command, away.environment)
        self._gcs = None
        began, _ = self._gcs_away.pop()
        self._gcs_away.append((began, time.monotonic()))
        self.say("GCS started again")

    def _kill_host(self, *, is_silent: bool) -> None:
        hosts = [number for number in self._hosts.nodes if number != 1]
        if len(hosts) + 1 <= FEWEST_HOSTS:
            return
        number = random.choice(hosts)
        node = self._hosts.nodes.pop(number)
        self._lost[number] = time.monotonic() + random.uniform(*REPLACED_S)
        if is_silent:
            self._hosts.cut(number)
            cut_off_s = random.uniform(*CUT_OFF_S)
            self._cut_off[number] = time.monotonic() + cut_off_s
            self._note("power", f"host {number} (node {node[:8]}), cut off, and killed in {cut_off_s:.0f} s")
        else:
            self._hosts.kill(number)
            self._note("host", f"host {number} (node {node[:8]})")

    def _mind_joining(self, now: float) -> None:
        for joining, deadline in list(self._joining.items()):
            try:
                is_complete = joining.is_complete()
            except AssertionError as error:  # its Ray has ended, as if the GCS is away for too long
                is_complete, deadline = False, 0.0
                self.say(f"host {joining.number} did not join:\n{str(error)[-800:]}")
            if is_complete:
                del self._joining[joining]
                self.counts["joined"] += 1
                self.say(f"host {joining.number} joined")
            elif now > deadline:
                del self._joining[joining]
                self.counts["not joined"] += 1
                self._lost[joining.number] = now
                self._hosts.kill(joining.number)
