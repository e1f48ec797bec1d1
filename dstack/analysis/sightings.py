"""Which findings of a snapshot are new, which last and which are over, by who takes part and where.

Counts and durations differ from look to look, and so do those behind; so a finding is the same as long as it is of the
same kind and at least one of its members is the same task, thread or coroutine at the same line. What one look does not
prove is told only when a later one shows all of them where they were.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

from dstack.analysis.coverage import seen_workers
from dstack.analysis.findings import verdict_of
from dstack.analysis.members import member
from dstack.analysis.observed import Observed
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
    """What a snapshot tells that was not known before it; ``new`` are findings of its diagnosis by their index."""

    new: tuple[int, ...] = ()
    lasting: tuple[Sighting, ...] = ()
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

    def take(self, snapshot: Snapshot, diagnosis: Diagnosis, now_s: float) -> Changes:
        """Compares a new snapshot with what is known.

        Over is only what is not seen any more though all who took part could be seen.
        """
        lasting: dict[Sighting, Sighting] = {}
        new: dict[int, Sighting] = {}
        doubtful: list[Sighting] = []
        for index, finding in enumerate(diagnosis.findings):
            if verdict_of(finding) == "blocked":
                continue
            one = _sighting(snapshot, diagnosis, finding, now_s)
            if known := [old for old in self.lasting if _is_same(old, one)]:
                lasting |= dict.fromkeys(known, one)
            elif _is_certain(finding) or now_s - (one := self._since_first(one)).began_s >= self._stuck_after_s:
                new[index] = one
            else:
                doubtful.append(one)
        missing = [old for old in self.lasting if old not in lasting]
        over = tuple(old for old in missing if _were_seen(old.workers, snapshot))
        hidden = [old for old in missing if old not in over]
        still = tuple(replace(one, began_s=old.began_s) for old, one in lasting.items())
        self.lasting = (*hidden, *still, *new.values())
        self.doubtful = tuple(doubtful)
        return Changes(new=tuple(new), lasting=still, over=over)

    def _since_first(self, one: Sighting) -> Sighting:
        """The same since all who were doubtful before have been where they are."""
        before = (old.began_s for old in self.doubtful if old.kind == one.kind and old.places <= one.places)
        return replace(one, began_s=min(before, default=one.began_s))

    def track(self, present: Set[str]) -> None:
        """Remembers who of those that take part is there now, to be compared with later looks."""
        parts = {part for sighting in self.lasting for part in (*sighting.tasks, *sighting.workers)}
        self._tracked = frozenset(parts & present)

    def is_touched(self, present: Set[str]) -> bool:
        """Whether somebody who takes part in a finding is not there any more."""
        return not self._tracked <= present


def _is_same(old: Sighting, one: Sighting) -> bool:
    return old.kind == one.kind and not old.places.isdisjoint(one.places)


def _is_certain(finding: Finding) -> bool:
    """Whether one snapshot proves it: everybody was seen twice alike, and nothing is assumed."""
    return finding.confirmed and finding.kind != "stalled"


def _were_seen(workers: Set[str], snapshot: Snapshot) -> bool:
    """Whether each of them was looked at, or is not there any more."""
    alive = {worker.worker_id for worker in snapshot.workers}
    return not (workers & alive) - seen_workers(snapshot)


def _sighting(snapshot: Snapshot, diagnosis: Diagnosis, finding: Finding, now_s: float) -> Sighting:
    observed = Observed(snapshot, snapshot.samples[0])
    vertices = _telling(diagnosis.vertices[key] for key in finding.members)
    tasks = frozenset(vertex.task_id for vertex in vertices if vertex.task_id)
    workers = {vertex.worker_id for vertex in vertices} | {
        worker for task in tasks for worker in _tellers(observed, task)
    }
    return Sighting(
        kind=finding.kind,
        summary=finding.summary,
        places=frozenset(_place(observed, vertex) for vertex in vertices),
        tasks=tasks,
        workers=frozenset(worker for worker in workers if worker),
        began_s=now_s,
    )


def _tellers(observed: Observed, task_id: str) -> Iterator[str | None]:
    """The workers that know of a task: its owner, and its actor's."""
    task = observed.tasks.get(task_id)
    actor = observed.actors.get(actor_of_task(task_id) or "")
    yield task.owner_id if task else None
    yield actor.worker_id if actor else None


def _telling(members: Iterable[Vertex]) -> list[Vertex]:
    """So many of them as are remembered: those that run before those that are pending."""
    return heapq.nsmallest(MOST_MEMBERS, members, key=lambda vertex: (vertex.worker_id is None, str(vertex.key)))


def _place(observed: Observed, vertex: Vertex) -> Place:
    who = member(observed, vertex)
    name = f"{who.task_id}/{who.attempt or 0}" if who.task_id else str(vertex.key)
    return name, who.file or "", str(who.line or "")
