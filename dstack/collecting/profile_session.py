"""Profiles a cluster: samples of its wait-for graph, each followed from its roots to what everything depends on.

:func:`main` does so in a child process, for a :class:`dstack.collecting.recorder.Recorder`; a part is what was sampled
in a second.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.names import find_job
from dstack.analysis.stacks.wait_paths import Hindsight, Nodes, PathReader, Root, paths_of, require_roots
from dstack.collecting.recorder import serve
from dstack.model.profile import JoinedProfile, Profile, ProfileCoverage, ProfileOptions, RootTime
from dstack.model.snapshot import Snapshot
from dstack.probes.cluster_rounds import ClusterRounds
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.processes.child import Parent
from dstack.processes.gc_pause import GcPause

PART_S = 1.0
LIMIT_S = 20.0
"""How long one round may take."""
HINDSIGHT_S = 60.0
"""How long samples are kept to find what a wait was for in the end; a longer wait is shared like others until then."""
BUSY_SHARE = 0.5
"""The largest part of the time in which samples are taken: where they take long, there are fewer of them."""


@dataclass(frozen=True, slots=True)
class Round:
    """One sample: what holds from ``began_us`` on for ``lasted_us``."""

    began_us: int
    lasted_us: int
    roots: Sequence[Root]
    nodes: Nodes

    def times(self, hindsight: Hindsight | None) -> Iterator[RootTime]:
        """Its paths with their times, which add up to the time of each root."""
        choice = hindsight.choice(self.nodes) if hindsight else None
        for root in self.roots:
            for path, fraction in paths_of(self.nodes, root, choice).items():
                yield RootTime(root.name, path, self.began_us, self.lasted_us, round(self.lasted_us * fraction))


class ProfileSession:
    """One profile, from the connection to the last sample; a context manager.

    ``job`` is what the user called the only job to follow. Raises :class:`dstack.errors.ClusterError` if the cluster is
    unreachable, and :class:`dstack.errors.UsageError` if there is no such job, or nothing of the name to be followed.
    """

    def __init__(
        self,
        address: str | None,
        duration_s: float,
        rate_hz: float,
        options: ProfileOptions,
        job: str | None,
        progress: Callable[[str], None],
    ) -> None:
        self._duration_s = duration_s
        self._pause_s = 1 / rate_hz
        self._probes = ProbeSession()
        self._rounds = ClusterRounds(self._probes, address, progress)
        progress("taking the first sample")
        snapshot = self._take()
        self._options = replace(options, job_id=find_job(snapshot, job) if job else None)
        require_roots(self._read(snapshot)[0], self._options)
        self._take()  # it learns what later ones know
        self.first = Profile(
            dstack_version=snapshot.dstack_version,
            address=snapshot.address,
            ray_version=snapshot.ray_version,
            began_at=time.time(),
            rate_hz=rate_hz,
            options=self._options,
        )
        self._is_stopped = False
        self._kept: deque[Round] = deque()
        self._last: Snapshot | None = None

    def __enter__(self) -> ProfileSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self._probes.close()

    def stop(self) -> None:
        """End it after the current sample; another thread may call this."""
        self._is_stopped = True

    def parts(self) -> Iterator[Profile]:
        """What was sampled, about once a second."""
        began, sent_at, part = time.monotonic(), time.monotonic(), JoinedProfile(self.first)
        cpu_s = time.process_time()
        while not self._is_stopped and time.monotonic() - began < self._duration_s:
            with GcPause():
                self._add_round(part, began)
            if time.monotonic() - sent_at > PART_S:
                spent_s = time.process_time() - cpu_s
                part.note(ProfileCoverage(cpu_s=spent_s), ())
                yield part.whole(0.0)
                sent_at, part, cpu_s = time.monotonic(), JoinedProfile(self.first), cpu_s + spent_s
                gc.collect(0)
        part.add_times(self._finished(everything=True))
        part.note(ProfileCoverage(cpu_s=time.process_time() - cpu_s), ())
        yield part.whole(0.0)

    def _add_round(self, part: JoinedProfile, began: float) -> None:
        """Take a sample, which counts from its begin to that of the next one, and add what is certain by now."""
        at = time.monotonic()
        snapshot = self._take()
        is_same = snapshot is self._last
        roots, nodes = (self._kept[-1].roots, self._kept[-1].nodes) if is_same and self._kept else self._read(snapshot)
        self._last = snapshot
        took_s = time.monotonic() - at
        until = min(at + max(self._pause_s, took_s / BUSY_SHARE), began + self._duration_s)
        while not self._is_stopped and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))
        lasted_us = round((time.monotonic() - at) * 1e6)
        self._kept.append(Round(round((at - began) * 1e6), lasted_us, roots, nodes))
        unread_us = 0 if roots else lasted_us
        part.note(ProfileCoverage(rounds=1, reused=int(is_same), unread_us=unread_us), snapshot.failures)
        part.add_times(self._finished(everything=not self._options.last))

    def _finished(self, *, everything: bool) -> list[RootTime]:
        """The times of all rounds, or of those before the last minute."""
        if not self._kept:
            return []
        until_us = self._kept[-1].began_us - HINDSIGHT_S * 1e6
        if not everything and self._kept[0].began_us > until_us - HINDSIGHT_S * 1e6:
            return []
        hindsight = Hindsight() if self._options.last else None
        of_rounds = [(one, list(one.times(hindsight))) for one in reversed(self._kept)]
        finished = [(one, times) for one, times in reversed(of_rounds) if everything or one.began_us <= until_us]
        for _ in finished:
            self._kept.popleft()
        return [time for _, times in finished for time in times]

    def _take(self) -> Snapshot:
        return self._rounds.take(LIMIT_S)

    def _read(self, snapshot: Snapshot) -> tuple[list[Root], Nodes]:
        index = SampleIndex(snapshot, snapshot.samples[0])
        reader = PathReader(index, wait_for_graph(index))
        roots = reader.roots(self._options)
        return roots, reader.nodes(roots)


def main(
    parent: Parent, address: str | None, duration_s: float, rate_hz: float, options: ProfileOptions, job: str | None
) -> None:
    """Makes one profile, as :func:`serve` does."""
    serve(parent, lambda note: ProfileSession(address, duration_s, rate_hz, options, job, note))
