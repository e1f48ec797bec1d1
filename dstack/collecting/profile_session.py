"""Profiles a cluster: samples of its wait-for graph, each followed from its roots to what everything depends on.

:func:`main` does so in a child process, for a :class:`dstack.collecting.recorder.Recorder`; a part is what was sampled
in a second.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.history.object_traffic import ObjectTraffic
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.names import find_job
from dstack.analysis.stacks.wait_paths import Hindsight, Nodes, OwnWaits, PathReader, Root, paths_of, require_roots
from dstack.collecting.recorder import serve
from dstack.errors import ClusterError
from dstack.model.profile import JoinedProfile, PathStep, Profile, ProfileCoverage, ProfileOptions, RootTime
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from dstack.probes.cluster_rounds import ClusterRounds, cluster_of_program, job_of_process
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.processes.child import Parent
from dstack.processes.gc_pause import GcPause

PART_S = 1.0
COLLECTED_EVERY_S = 20
LIMIT_S = 20.0
"""How long one round may take."""
HINDSIGHT_S = 60.0
"""How long samples are kept to find what a wait was for in the end; a longer wait is shared like others until then."""
JITTER = (0.5, 1.5)
"""The turns are of random length, so that samples do not keep step with a loop of the program."""
BEFORE = PathStep("before it was connected to its cluster", state="starts")
"""What a program did before its driver was read the first time."""
BUSY_SHARE = 0.5
"""The largest part of the time in which samples are taken: where they take long, there are fewer of them."""


@dataclass(slots=True)
class Round:
    """One sample: it counts from half way after the sample before to half way to the next one.

    ``at_us`` is the middle of the time in which it was taken. Samples take longer where the cluster is busy; if each
    counted until the next one, busy times would seem longer than they are. ``waits`` are the numbers of the roots' own.
    """

    at_us: int
    roots: Sequence[Root]
    nodes: Nodes
    waits: Sequence[int]
    began_us: int = 0
    ended_us: int = 0

    def times(self, hindsight: Hindsight | None) -> Iterator[RootTime]:
        """Its paths with their times, which add up to the time of each root."""
        choice = hindsight.choice(self.nodes) if hindsight else None
        lasted_us = self.ended_us - self.began_us
        for root, nth_wait in zip(self.roots, self.waits, strict=True):
            for path, fraction in paths_of(self.nodes, root, choice).items():
                yield RootTime(root.name, path, self.began_us, lasted_us, round(lasted_us * fraction), nth_wait)


class ProfileSession:
    """One profile, from the connection to the last sample; a context manager.

    ``job`` is what the user called the only job to follow, or the pid of its driver on this host, if it has one here.
    ``program`` is the pid of a process whose cluster is profiled, once it has one; the profile begins now. Raises
    :class:`dstack.errors.ClusterError` if the cluster is unreachable, and :class:`dstack.errors.UsageError` if there is
    no such job, or nothing of the name to be followed.
    """

    def __init__(
        self,
        address: str | None,
        duration_s: float,
        rate_hz: float,
        options: ProfileOptions,
        job: str | int | None,
        program: int | None,
        progress: Callable[[str], None],
    ) -> None:
        self._duration_s = duration_s
        self._pause_s = 1 / rate_hz
        began, began_at = time.monotonic(), time.time()
        if program is not None:
            progress("waiting for the program to start or to join a cluster")
            address, job = cluster_of_program(program, address), job or program
        self._is_of_program = self._is_before = program is not None
        self._began = began
        self._probes = ProbeSession()
        self._rounds = ClusterRounds(self._probes, address, progress)
        snapshot = self._rounds.cluster_without_samples()
        found = job_of_process(snapshot.jobs, job) if isinstance(job, int) else find_job(snapshot, job) if job else None
        self._options = replace(options, job_id=found)
        self.first = Profile(
            dstack_version=snapshot.dstack_version,
            address=snapshot.address,
            ray_version=snapshot.ray_version,
            began_at=began_at,
            rate_hz=rate_hz,
            options=self._options,
        )
        self._traffic = ObjectTraffic(self._options.job_id)
        self._own_waits = OwnWaits()
        self._is_stopped = False
        self._last: Snapshot | None = None
        self._open: Round | None = None
        self._ended: deque[Round] = deque()
        self._sent_sources: dict[str, dict[int, str]] = {}

    def __enter__(self) -> ProfileSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self._probes.close()

    def stop(self) -> None:
        """End it after the current sample; another thread may call this."""
        self._is_stopped = True

    def parts(self) -> Iterator[Profile]:
        """What was sampled, about once a second."""
        if not self._is_of_program:
            require_roots(self._read(self._take())[0], self._options)
            self._take()  # it learns what later ones know
            self._traffic.taken()
            self._began = time.monotonic()
        part, sent_at, cpu_s = JoinedProfile(self.first), time.monotonic(), time.process_time()
        yield self._sent(part, cpu_s)  # it has begun
        gc.freeze()  # loaded modules stay: the garbage collector need not scan them again
        is_over = False
        while not is_over:
            with GcPause():
                try:
                    self._add_round(part)
                except ClusterError as error:  # it has ended
                    ended = Failure(stage="control plane", reason=error.message.rstrip("."), remedy=error.remedy)
                    part.note(ProfileCoverage(), [ended])
                    break
            is_over = self._is_stopped or time.monotonic() - self._began >= self._duration_s
            if time.monotonic() - sent_at > PART_S:
                yield self._sent(part, cpu_s)
                sent_at, part, cpu_s = time.monotonic(), JoinedProfile(self.first), time.process_time()
                gc.collect(
                    1 if self._now_us() // 1e6 % COLLECTED_EVERY_S else 2
                )  # parts of an index refer to each other
        self._end_round(self._now_us())
        self._finish(part, everything=True)
        yield self._sent(part, cpu_s)

    def _sent(self, part: JoinedProfile, cpu_s: float) -> Profile:
        part.add_sources(self._new_sources(self._last.sources if self._last else {}))
        part.add_traffic(*self._traffic.taken())
        part.note(ProfileCoverage(cpu_s=time.process_time() - cpu_s), ())
        return part.whole(0.0)

    def _new_sources(self, sources: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
        """The lines that were not sent yet."""
        new: dict[str, dict[int, str]] = {}
        for file, lines in sources.items():
            sent = self._sent_sources.setdefault(file, {})
            if len(sent) < len(lines) and (unsent := {line: lines[line] for line in lines.keys() - sent.keys()}):
                new[file] = unsent
                sent.update(unsent)
        return new

    def _now_us(self) -> int:
        return round((time.monotonic() - self._began) * 1e6)

    def _add_round(self, part: JoinedProfile) -> None:
        """Take a sample, add what is certain by now, and wait until the next one is due."""
        from_us = self._now_us()
        snapshot = self._take()
        at_us = (from_us + self._now_us()) // 2
        last, is_same, self._last = self._open, snapshot is self._last, snapshot
        roots, nodes = (last.roots, last.nodes) if is_same and last else self._read(snapshot)
        began_us = (last.at_us + at_us) // 2 if last else 0
        self._end_round(began_us)
        self._open = Round(at_us, roots, nodes, [self._own_waits.number(root) for root in roots], began_us)
        self._finish(part, everything=not self._options.last)
        part.note(ProfileCoverage(rounds=1, reused=int(is_same), spread_ms=self._rounds.spread_ms), snapshot.failures)
        took_s = (self._now_us() - from_us) / 1e6
        pause_s = self._pause_s * random.uniform(*JITTER)
        until = self._began + from_us / 1e6 + max(pause_s, took_s / BUSY_SHARE)
        until = min(until, self._began + self._duration_s)
        while not self._is_stopped and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))

    def _end_round(self, ended_us: int) -> None:
        if self._open:
            self._open.ended_us = ended_us
            self._ended.append(self._open)

    def _finish(self, part: JoinedProfile, *, everything: bool) -> None:
        """Add the times of all rounds that have ended, or of those before the last minute."""
        until_us = self._ended[-1].ended_us - (0.0 if everything else HINDSIGHT_S * 1e6) if self._ended else 0.0
        if not self._ended or (not everything and self._ended[0].began_us > until_us - HINDSIGHT_S * 1e6):
            return
        hindsight = Hindsight() if self._options.last else None
        times = [list(one.times(hindsight)) for one in reversed(self._ended)]
        while self._ended and self._ended[0].ended_us <= until_us:
            one = self._ended.popleft()
            self._add(part, one, times.pop())

    def _add(self, part: JoinedProfile, one: Round, times: Sequence[RootTime]) -> None:
        """Add the times of a round; those before a program's driver is connected are the driver's, too."""
        if one.roots and self._is_before:
            self._is_before = False
            part.add_times(RootTime(root.name, (BEFORE,), 0, one.began_us, one.began_us) for root in one.roots)
        part.add_times(times)
        if not one.roots and not self._is_of_program:
            part.note(ProfileCoverage(unread_us=one.ended_us - one.began_us), ())

    def _take(self) -> Snapshot:
        snapshot = self._rounds.take(LIMIT_S)
        if snapshot is not self._last:
            self._traffic.note(snapshot, self._rounds.changed)
        return snapshot

    def _read(self, snapshot: Snapshot) -> tuple[list[Root], Nodes]:
        index = SampleIndex(snapshot, snapshot.samples[0])
        reader = PathReader(index, wait_for_graph(index))
        roots = reader.roots(self._options)
        return roots, reader.nodes(roots)


def main(
    parent: Parent,
    address: str | None,
    duration_s: float,
    rate_hz: float,
    options: ProfileOptions,
    job: str | int | None,
    program: int | None,
) -> None:
    """Makes one profile, as :func:`serve` does."""
    serve(parent, lambda note: ProfileSession(address, duration_s, rate_hz, options, job, program, note))
