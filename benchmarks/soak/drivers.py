"""The drivers of the soak: a few workloads at a time on the head's host, each for a while, and their progress.

The head's host is never killed, so drivers survive all faults; one that ends by itself is a failure of its workload.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.hosts import Hosts
from tests.paths import ROOT
from tests.processes import Child, last_output

WORKLOADS = ROOT / "benchmarks" / "workloads"
LIBRARIES = ("collectives", "data", "serve", "serve_timeouts", "train", "tune")
CORE = (
    "actor_pool",
    "async_actors",
    "churn",
    "comings_and_goings",
    "generators",
    "nested_actors",
    "nested_tasks",
    "placement_groups",
    "queues",
    "scarce_resources",
    "short_tasks",
    "threaded_actors",
    "threads",
    "timeouts",
)
ENDED = ("deadlines", "flags", "racks", "watchdogs")
"""Cycles of waits, and requests that no host satisfies, until a timer, a watchdog, a signal or a new host ends them."""
NOT_TOLERANT = ("compiled_graph",)
"""Only by name: the channels of a compiled graph do not survive the death of an actor."""
NEEDS = {
    "collectives": "torch",
    "data": "pyarrow",
    "deadlines": "anyio",
    "serve": "fastapi",
    "serve_timeouts": "fastapi",
    "tune": "tensorboardX",
    "train": "pyarrow",
}
"""Workloads that need an extra, each with a package that shows whether it is installed."""

TURN_S = 150.0
"""Mean duration of a workload."""
START_S = 180.0
"""Deadline for a workload to start beside running ones and faults."""
STOPPED_S = 240.0
"""A workload without a finished round for so long has stopped. Ray needs 64 s to notice a host that is cut off."""
END_S = 20.0
"""How long a driver may take to end by SIGTERM."""


@dataclass
class Driver:
    """A running workload: its output shows its job, and when it has last finished a round or failed."""

    name: str
    child: Child
    ends_at: float
    began_at: float = field(default_factory=time.monotonic)
    job: str | None = None
    is_ready: bool = False
    progress_at: float = field(default_factory=time.monotonic)
    rounds: int = 0
    failures: int = 0
    terminated_at: float | None = None
    _read: int = 0

    def read(self) -> None:
        """Note the lines that it has printed since the last call."""
        with self.child.log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._note(line)

    def _note(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "job" and self.job is None:
            self.job = rest
        elif line == "ready":
            self.is_ready = True
        elif line == "round":
            self.rounds += 1
        elif word == "failed":
            self.failures += 1
        else:
            return
        self.progress_at = time.monotonic()

    @property
    def has_ended(self) -> bool:
        return self.child.process.poll() is not None

    @property
    def has_stopped(self) -> bool:
        """Whether it has made no progress for too long."""
        limit_s = STOPPED_S if self.is_ready else START_S
        return time.monotonic() - self.progress_at > limit_s

    def terminate(self) -> None:
        """Ask the driver to end; kill it when it has had time for that."""
        number = signal.SIGTERM
        if self.terminated_at is None:
            self.terminated_at = time.monotonic()
        elif time.monotonic() - self.terminated_at > END_S:
            number = signal.SIGKILL
        else:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.child.pid).children():  # the child itself is nsenter
                process.send_signal(number)


class Drivers:
    """Keeps ``together`` workloads running, half of them of Ray's libraries as far as there are any.

    ``progress`` maps the jobs of all drivers so far to the time of their last progress; ``ended`` has those that were
    ended, by this or by themselves.
    """

    def __init__(self, hosts: Hosts, names: list[str], together: int, say: Callable[[str], None]) -> None:
        self._hosts = hosts
        self._say = say
        self._stack = ExitStack()
        libraries = [name for name in names if name in LIBRARIES]
        ended = [name for name in names if name in ENDED]
        core = [name for name in names if name not in LIBRARIES and name not in ENDED]
        kinds = [kind for kind in (libraries, core, ended) if kind]
        self._orders = [_shuffled_for_ever(kind) for kind in kinds]
        self._any = _shuffled_for_ever(names)
        self._slots: list[Driver | None] = [None] * min(together, len(names))
        self.progress: dict[str, float] = {}
        self.ended: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.stopped: list[str] = []
        self.rounds: Counter[str] = Counter()

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def running(self) -> list[Driver]:
        return [driver for driver in self._slots if driver is not None]

    def are_ready(self) -> bool:
        return all(driver is not None and driver.is_ready for driver in self._slots)

    def step(self, keep: set[str]) -> None:
        """Note progress, and replace workloads whose turn is over, except the jobs ``keep``."""
        for number, driver in enumerate(self._slots):
            if driver is None:
                self._slots[number] = self._start(number)
                continue
            driver.read()
            if driver.job:
                self.progress[driver.job] = driver.progress_at
            if driver.has_ended:
                self._note_end(driver)
                self._slots[number] = None
            elif driver.has_stopped or (time.monotonic() > driver.ends_at and driver.job not in keep):
                self._end(driver)

    def names_of(self, jobs: list[str]) -> str:
        names = {driver.job: driver.name for driver in self.running}
        return ", ".join(names.get(job, f"job {job}") for job in jobs)

    def _start(self, number: int) -> Driver:
        order = self._orders[number % len(self._orders)]
        busy = {driver.name for driver in self.running}
        wanted = itertools.chain(itertools.islice(order, 50), itertools.islice(self._any, 50))
        name = next((name for name in wanted if name not in busy), None) or next(order)
        argv = [sys.executable, str(WORKLOADS / f"{name}.py")]
        environment = {
            "RAY_ADDRESS": self._hosts.address,
            "RAY_AUTH_MODE": "token",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._hosts.shared),  # storage of Train and Tune must be the same on all hosts
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        child = self._stack.enter_context(self._hosts.start(1, argv, **environment))
        self.counts["drivers"] += 1
        return Driver(name, child, ends_at=time.monotonic() + random.uniform(0.6, 1.4) * TURN_S)

    def _end(self, driver: Driver) -> None:
        if driver.terminated_at is None and driver.has_stopped:
            since = f"no progress for {time.monotonic() - driver.progress_at:.0f} s"
            self.counts["stopped"] += 1
            self.stopped.append(f"{driver.name}, job {driver.job}: {since}")
            self._say(f"workload {driver.name} (job {driver.job}) has stopped: {since}; it is ended and replaced")
        if driver.job:
            self.ended.add(driver.job)
        driver.terminate()

    def _note_end(self, driver: Driver) -> None:
        self.rounds[driver.name] += driver.rounds
        self.counts.update(rounds=driver.rounds, failures=driver.failures)
        if driver.job:
            self.ended.add(driver.job)
        if driver.terminated_at is None:
            self.counts["died"] += 1
            output = last_output(Path(driver.child.log))[-1500:]
            self._say(f"driver of {driver.name} (job {driver.job}) has ended by itself:\n{output}")

    def count_running(self) -> None:
        """Add the rounds of the drivers that still run to the counts."""
        for driver in self.running:
            driver.read()
            self.rounds[driver.name] += driver.rounds
            self.counts.update(rounds=driver.rounds, failures=driver.failures)


def chosen(wanted: list[str]) -> tuple[list[str], list[str]]:
    """The workloads to run, and those that cannot run here."""
    known = [*LIBRARIES, *CORE, *ENDED, *NOT_TOLERANT]
    if unknown := set(wanted) - set(known):
        sys.exit(f"There is no workload {', '.join(sorted(unknown))}. There are {', '.join(known)}.")
    names = wanted or [*LIBRARIES, *CORE, *ENDED]
    missing = {name for name in names if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None}
    return [name for name in names if name not in missing], sorted(missing)


def _shuffled_for_ever(names: list[str]) -> Iterator[str]:
    while True:
        yield from random.sample(names, len(names))
