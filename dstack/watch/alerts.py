"""Which findings of a snapshot are new, which last, which have merged and which are over.

A finding is a set of places: its members, each a task's attempt, thread or coroutine at a line. Counts, durations and
what is blocked behind differ from snapshot to snapshot and do not matter. From one snapshot to the next, findings of
one kind that share places are paired one to one, those first that share most. Then

- a pair is one finding that lasts, however it has grown or shrunk;
- a finding without a predecessor is new, also where it has split off from one that lasts;
- a finding without a successor has merged, if its places are now part of another one, and is over otherwise.

What one snapshot does not prove is reported only when a later one shows that nothing in it has moved.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from dstack.analysis.evidence.coverage import seen_workers
from dstack.analysis.findings import verdict_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.diagnosis import Diagnosis, Finding, FindingKind, Vertex
from dstack.model import Snapshot, actor_of_task

MOST_MEMBERS = 1000
"""So many members of one finding are remembered."""

Place = tuple[str, str, str]
"""Who, as a task's attempt or a vertex key; and the file and line it is at, if any."""


@dataclass(frozen=True)
class Sighting:
    """A finding that concerns a watch: what it is known by, and the tasks and workers that take part."""

    kind: FindingKind
    summary: str
    places: frozenset[Place]
    tasks: frozenset[str]
    workers: frozenset[str]
    began_s: float


@dataclass(frozen=True)
class Changes:
    """What a snapshot tells that was not known before it; ``new`` are findings of its diagnosis by their index.

    ``merged`` are findings that were known as their own, each with the one that lasts and that they are part of now.
    """

    new: tuple[int, ...] = ()
    lasting: tuple[Sighting, ...] = ()
    merged: tuple[tuple[Sighting, Sighting], ...] = ()
    over: tuple[Sighting, ...] = ()


class Sightings:
    """The findings that last, as far as is known.

    ``doubtful`` are those that are not told yet, since they are no more than likely and do not stand for
    ``stuck_after_s`` seconds yet.
    """

    def __init__(self, stuck_after_s: float) -> None:
        self._stuck_after_s = stuck_after_s
        self.lasting: tuple[Sighting, ...] = ()
        self.doubtful: tuple[Sighting, ...] = ()
        self._tracked: frozenset[str] = frozenset()

    def take(self, analysed: AnalysedSnapshot, now_s: float) -> Changes:
        """Compares a new snapshot with what is known.

        Over is only what is not seen any more though all who took part could be seen.
        """
        found = {
            index: _sighting(analysed, finding, now_s)
            for index, finding in enumerate(analysed.diagnosis.findings)
            if verdict_of(finding) != "blocked"
        }
        before = dict(enumerate(self.lasting))
        heirs = _paired(before, found)
        lasting = {index: replace(found[index], began_s=before[old].began_s) for old, index in heirs.items()}
        merged: list[tuple[int, int]] = []
        gone: list[Sighting] = []
        for old, one in before.items():
            if old in heirs:
                continue
            into = _absorbing(one, before, heirs, found)
            if into is None:
                gone.append(one)
            else:
                merged.append((old, into))
                lasting[into] = replace(lasting[into], began_s=min(lasting[into].began_s, one.began_s))
        new, self.doubtful = self._reported_and_doubtful(analysed.diagnosis, found, lasting)
        over = tuple(one for one in gone if _were_seen(one.workers, analysed.snapshot))
        hidden = [one for one in gone if one not in over]
        self.lasting = (*hidden, *lasting.values(), *new.values())
        return Changes(
            new=tuple(new),
            lasting=tuple(lasting.values()),
            merged=tuple((before[old], lasting[into]) for old, into in merged),
            over=over,
        )

    def _reported_and_doubtful(
        self, diagnosis: Diagnosis, found: Mapping[int, Sighting], lasting: Mapping[int, Sighting]
    ) -> tuple[dict[int, Sighting], tuple[Sighting, ...]]:
        """Of the findings that have no predecessor: those to be reported now, and those that are doubtful yet."""
        new: dict[int, Sighting] = {}
        doubtful: list[Sighting] = []
        for index, one in found.items():
            if index in lasting:
                continue
            now_s, one = one.began_s, self._since_first(one)
            if _is_certain(diagnosis.findings[index]) or now_s - one.began_s >= self._stuck_after_s:
                new[index] = one
            else:
                doubtful.append(one)
        return new, tuple(doubtful)

    def _since_first(self, one: Sighting) -> Sighting:
        """The same since it, more or less of it was seen first, if no place in it has changed since then."""
        before = (old.began_s for old in (*self.doubtful, *self.lasting) if _is_unmoved(old, one))
        return replace(one, began_s=min(before, default=one.began_s))

    def track(self, present: Set[str]) -> None:
        """Remembers who of those that take part is there now, to be compared with later looks."""
        parts = {part for sighting in self.lasting for part in (*sighting.tasks, *sighting.workers)}
        self._tracked = frozenset(parts & present)

    def is_touched(self, present: Set[str]) -> bool:
        """Whether somebody who takes part in a finding is not there any more."""
        return not self._tracked <= present


def _paired(before: Mapping[int, Sighting], found: Mapping[int, Sighting]) -> dict[int, int]:
    """The successors of findings: pairs that share places, the closest first, each finding in one pair at most."""
    holders: dict[tuple[FindingKind, Place], list[int]] = defaultdict(list)
    for index, one in found.items():
        for place in one.places:
            holders[one.kind, place].append(index)
    shared = Counter(
        (old, index) for old, one in before.items() for place in one.places for index in holders[one.kind, place]
    )

    def closeness(pair: tuple[int, int]) -> tuple[int, int, float]:
        old, index = pair
        return -shared[pair], len(before[old].places) + len(found[index].places), before[old].began_s

    heirs: dict[int, int] = {}
    taken: set[int] = set()
    for old, index in sorted(shared, key=closeness):
        if old not in heirs and index not in taken:
            heirs[old] = index
            taken.add(index)
    return heirs


def _absorbing(
    one: Sighting, before: Mapping[int, Sighting], heirs: Mapping[int, int], found: Mapping[int, Sighting]
) -> int | None:
    """Which finding that lasts has got places of this one that it did not have before; None where none has."""
    for old, index in heirs.items():
        if before[old].kind == one.kind and (one.places & found[index].places) - before[old].places:
            return index
    return None


def _is_unmoved(old: Sighting, one: Sighting) -> bool:
    """Whether one of the two is part of the other: findings may grow and shrink while all in them stay in place."""
    return old.kind == one.kind and bool(old.places) and (old.places <= one.places or one.places <= old.places)


def _is_certain(finding: Finding) -> bool:
    """Whether one snapshot proves it: everybody was seen twice alike, and nothing is assumed."""
    return finding.confirmed and finding.kind != "stalled"


def _were_seen(workers: Set[str], snapshot: Snapshot) -> bool:
    """Whether each of them was looked at, or is not there any more."""
    alive = {worker.worker_id for worker in snapshot.workers}
    return not (workers & alive) - seen_workers(snapshot)


def _sighting(analysed: AnalysedSnapshot, finding: Finding, now_s: float) -> Sighting:
    index = analysed.first_index
    vertices = _telling(analysed.diagnosis.vertices[key] for key in finding.members)
    tasks = frozenset(vertex.task_id for vertex in vertices if vertex.task_id)
    workers = {vertex.worker_id for vertex in vertices} | {worker for task in tasks for worker in _tellers(index, task)}
    return Sighting(
        kind=finding.kind,
        summary=finding.summary,
        places=frozenset(_place(index, vertex) for vertex in vertices),
        tasks=tasks,
        workers=frozenset(worker for worker in workers if worker),
        began_s=now_s,
    )


def _tellers(index: SampleIndex, task_id: str) -> Iterator[str | None]:
    """The workers that know of a task: its owner, and its actor's."""
    task = index.tasks.get(task_id)
    actor = index.actors.get(actor_of_task(task_id) or "")
    yield task.owner_id if task else None
    yield actor.worker_id if actor else None


def _telling(members: Iterable[Vertex]) -> list[Vertex]:
    """So many of them as are remembered: those that run before those that are pending."""
    return heapq.nsmallest(MOST_MEMBERS, members, key=lambda vertex: (vertex.worker_id is None, str(vertex.key)))


def _place(index: SampleIndex, vertex: Vertex) -> Place:
    who = details_of(index, vertex)
    name = f"{who.task_id}/{who.attempt or 0}" if who.task_id else str(vertex.key)
    return name, who.file or "", str(who.line or "")
