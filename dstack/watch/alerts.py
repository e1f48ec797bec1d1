"""Which findings of a snapshot are new, lasting, merged or over.

A finding is a set of positions: its members, each a task's attempt, thread or coroutine at a line. Counts, durations
and what is blocked behind it are ignored, since they differ between snapshots. Findings of one kind that share
positions in two consecutive snapshots are paired one to one, those first that share most. Then

- a pair is one lasting finding, however it has grown or shrunk;
- a finding without a predecessor is new, also if it has split off from a lasting one;
- a finding without a successor has merged if its positions are now part of another one, and is over otherwise.

A finding that one snapshot does not prove is reported only when a later one shows that nothing in it has moved.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from dstack.analysis.evidence.coverage import read_workers
from dstack.analysis.findings import is_stuck
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import FAILING, Diagnosis, Finding, FindingKind, Vertex
from dstack.model.snapshot import Snapshot, actor_of_task
from dstack.words import grouped

MAX_MEMBERS = 1000
"""The most members of one finding that are remembered."""

Position = tuple[str, str, str]
"""A task's attempt or a vertex key; and its file and line, if any."""


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding as the watch remembers it: its positions, and the tasks and workers that take part in it."""

    kind: FindingKind
    summary: str
    positions: frozenset[Position]
    tasks: frozenset[str]
    workers: frozenset[str]
    began_s: float


@dataclass(frozen=True, slots=True)
class Changes:
    """What a snapshot changes; ``new`` has the indices of new findings in its diagnosis.

    ``merged`` has findings that have become part of another one, each with that lasting finding.
    """

    new: tuple[int, ...] = ()
    lasting: tuple[KnownFinding, ...] = ()
    merged: tuple[tuple[KnownFinding, KnownFinding], ...] = ()
    over: tuple[KnownFinding, ...] = ()


class FindingTracker:
    """The findings of some kinds that last.

    ``unproven`` are not reported yet: one snapshot does not prove them, and they have not lasted ``stuck_after_s``.
    """

    def __init__(self, stuck_after_s: float, kinds: Set[FindingKind] = FAILING["stalled"]) -> None:
        self._stuck_after_s = stuck_after_s
        self._kinds = kinds
        self.lasting: tuple[KnownFinding, ...] = ()
        self.unproven: tuple[KnownFinding, ...] = ()
        self._tracked: frozenset[str] = frozenset()

    def update(self, analysed: AnalysedSnapshot, now_s: float) -> Changes:
        """Compares a new snapshot with the known findings.

        A finding is over only if it is absent from the snapshot and all its workers were read or have ended.
        """
        found = {
            index: _known_finding(analysed, finding, now_s)
            for index, finding in enumerate(analysed.diagnosis.findings)
            if finding.kind in self._kinds
        }
        before = dict(enumerate(self.lasting))
        successors = _paired(before, found)
        lasting = {index: replace(found[index], began_s=before[old].began_s) for old, index in successors.items()}
        merged: list[tuple[int, int]] = []
        absent: list[KnownFinding] = []
        for old, one in before.items():
            if old in successors:
                continue
            into = _absorbing(one, before, successors, found)
            if into is None:
                absent.append(one)
            else:
                merged.append((old, into))
                lasting[into] = replace(lasting[into], began_s=min(lasting[into].began_s, one.began_s))
        new, self.unproven = self._reported_and_unproven(analysed.diagnosis, found, lasting)
        over = tuple(one for one in absent if _were_read(one.workers, analysed.snapshot))
        unread = [one for one in absent if one not in over]
        self.lasting = (*unread, *lasting.values(), *new.values())
        return Changes(
            new=tuple(new),
            lasting=tuple(lasting.values()),
            merged=tuple((before[old], lasting[into]) for old, into in merged),
            over=over,
        )

    def _reported_and_unproven(
        self, diagnosis: Diagnosis, found: Mapping[int, KnownFinding], lasting: Mapping[int, KnownFinding]
    ) -> tuple[dict[int, KnownFinding], tuple[KnownFinding, ...]]:
        """Divides the findings without a predecessor: those to report now, and those that are unproven."""
        new: dict[int, KnownFinding] = {}
        unproven: list[KnownFinding] = []
        for index, one in found.items():
            if index in lasting:
                continue
            now_s, one = one.began_s, self._since_first(one)
            if _is_certain(diagnosis.findings[index]) or now_s - one.began_s >= self._stuck_after_s:
                new[index] = one
            else:
                unproven.append(one)
        return new, tuple(unproven)

    def _since_first(self, one: KnownFinding) -> KnownFinding:
        """The finding since its first snapshot, in which it may have had more or fewer members, at the same lines."""
        before = (old.began_s for old in (*self.unproven, *self.lasting) if _is_unmoved(old, one))
        return replace(one, began_s=min(before, default=one.began_s))

    def track(self, present: Set[str]) -> None:
        """Remembers which tasks and workers of the findings are present now, to compare with later polls."""
        parts = {part for finding in self.lasting for part in (*finding.tasks, *finding.workers)}
        self._tracked = frozenset(parts & present)

    def has_progress(self, present: Set[str]) -> bool:
        """Whether a tracked task or worker of a finding is absent now."""
        return not self._tracked <= present


def _paired(before: Mapping[int, KnownFinding], found: Mapping[int, KnownFinding]) -> dict[int, int]:
    """The successors of findings: pairs that share positions, the closest first, each finding in one pair at most."""
    holders = grouped(((one.kind, position), index) for index, one in found.items() for position in one.positions)
    shared = Counter(
        (old, index)
        for old, one in before.items()
        for position in one.positions
        for index in holders.get((one.kind, position), ())
    )

    def closeness(pair: tuple[int, int]) -> tuple[int, int, float]:
        old, index = pair
        return -shared[pair], len(before[old].positions) + len(found[index].positions), before[old].began_s

    successors: dict[int, int] = {}
    paired: set[int] = set()
    for old, index in sorted(shared, key=closeness):
        if old not in successors and index not in paired:
            successors[old] = index
            paired.add(index)
    return successors


def _absorbing(
    one: KnownFinding,
    before: Mapping[int, KnownFinding],
    successors: Mapping[int, int],
    found: Mapping[int, KnownFinding],
) -> int | None:
    """The lasting finding that has gained positions of this one; None without one."""
    for old, index in successors.items():
        if before[old].kind == one.kind and (one.positions & found[index].positions) - before[old].positions:
            return index
    return None


def _is_unmoved(old: KnownFinding, one: KnownFinding) -> bool:
    """Whether one of the two contains the other: a finding may grow and shrink while its members do not move."""
    if old.kind != one.kind or not old.positions:
        return False
    return old.positions <= one.positions or one.positions <= old.positions


def _is_certain(finding: Finding) -> bool:
    """Whether one snapshot proves it: both samples agree, and nothing is assumed."""
    return finding.confirmed and is_stuck(finding)


def _were_read(workers: Set[str], snapshot: Snapshot) -> bool:
    """Whether each of these workers was read, or has ended."""
    alive = {worker.worker_id for worker in snapshot.workers}
    return not (workers & alive) - read_workers(snapshot)


def _known_finding(analysed: AnalysedSnapshot, finding: Finding, now_s: float) -> KnownFinding:
    index = analysed.first_index
    vertices = _remembered(analysed.diagnosis.vertices[key] for key in finding.members)
    tasks = frozenset(vertex.task_id for vertex in vertices if vertex.task_id)
    workers = {vertex.worker_id for vertex in vertices}
    workers.update(worker for task in tasks for worker in _workers_of(index, task))
    return KnownFinding(
        kind=finding.kind,
        summary=finding.summary,
        positions=frozenset(_position(index, vertex) for vertex in vertices),
        tasks=tasks,
        workers=frozenset(worker for worker in workers if worker),
        began_s=now_s,
    )


def _workers_of(index: SampleIndex, task_id: str) -> Iterator[str | None]:
    """The workers that know of a task: its owner, and its actor's."""
    task = index.tasks.get(task_id)
    actor = index.actors.get(actor_of_task(task_id) or "")
    yield task.owner_id if task else None
    yield actor.worker_id if actor else None


def _remembered(members: Iterable[Vertex]) -> list[Vertex]:
    """At most :data:`MAX_MEMBERS` members, running ones before pending ones."""
    return heapq.nsmallest(MAX_MEMBERS, members, key=lambda vertex: (vertex.worker_id is None, str(vertex.key)))


def _position(index: SampleIndex, vertex: Vertex) -> Position:
    details = details_of(index, vertex)
    name = f"{details.task_id}/{details.attempt or 0}" if details.task_id else str(vertex.key)
    return name, details.file or "", str(details.line or "")
