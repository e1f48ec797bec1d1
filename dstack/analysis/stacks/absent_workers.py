"""Which of several workers that are alike are not where the others are: elsewhere, idle, dead or not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from dstack.analysis.evidence.coverage import read_states
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Execution, kind_of, kind_of_actor
from dstack.analysis.stacks.stack_tree import StackBranch
from dstack.diagnosis import Vertex
from dstack.model import Actor, Worker
from dstack.vertex_keys import Key

Why = Literal["not read", "unreadable", "idle", "dead", "without a process"]
ABSENCES: tuple[Why, ...] = ("not read", "unreadable", "dead", "without a process", "idle")
"""The gravest first: a process that was not seen, or a call whose stack was unreadable, may be anywhere."""


class AbsentWorker(NamedTuple):
    """A worker, or an actor without one, of which no stack of the application was read.

    ``kind`` and ``job_id`` are those of :class:`Execution`; of a worker that was not seen, the kind is ``worker`` where
    nobody knows what it runs.
    ``detail`` is a sentence's end, as ``did not answer``.
    """

    kind: str
    job_id: str | None
    name: str
    why: Why
    detail: str
    worker_id: str | None = None


class BranchPeers(NamedTuple):
    """Of one ``kind`` in one job: how many workers are in a branch, what others do ``elsewhere``, who is missing."""

    kind: str
    job_id: str | None
    here: int
    elsewhere: tuple[Execution, ...]
    absent: tuple[AbsentWorker, ...]

    @property
    def away(self) -> int:
        """How many workers are elsewhere, each with one or more of the executions there."""
        return len({execution.worker_id for execution in self.elsewhere})

    @property
    def all(self) -> int:
        """How many there are."""
        return self.here + self.away + len(self.absent)


def absent_workers(
    index: SampleIndex, vertices: Mapping[Key, Vertex], executions: Iterable[Execution]
) -> tuple[AbsentWorker, ...]:
    """Actors of the same classes and jobs without an execution, and all workers that were not seen or not readable."""
    present = list(executions)
    there = {execution.worker_id for execution in present}
    classes = {(execution.kind, execution.peer_group.job_id) for execution in present}
    lull = AbsenceReasons(index, vertices)
    actors = list(_actors(index, lull, there, classes))
    listed = {one.worker_id for one in actors if one.worker_id}
    found = [*actors, *_workers(index, lull, there | listed)]
    return tuple(sorted(found, key=lambda one: (ABSENCES.index(one.why), one.kind, one.name)))


class AbsenceReasons:
    """Why there is no execution of the application in a worker."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._sights = read_states(index.snapshot)
        self._seen = {vertex.worker_id for vertex in vertices.values() if vertex.kind == "execution"}
        self._tasks = {
            vertex.worker_id: vertex.task_id
            for vertex in vertices.values()
            if vertex.kind == "task" and vertex.worker_id
        }

    def why(self, worker: Worker) -> tuple[Why, str]:
        """The reason, and a sentence's end about the worker."""
        if self._sights[worker.worker_id] != "seen":
            return "not read", _unseen(self._index, worker)
        seen = self._index.worker_samples.get(worker.worker_id)
        if seen is None or not seen.running_task_ids:
            return "idle", "is idle"
        if worker.worker_id in self._seen:
            return "idle", "runs only code of its library"
        return "unreadable", "runs a call, but its stack was not read"

    def task_in(self, worker: Worker) -> str | None:
        """The task it runs, where its stack was not seen."""
        return self._tasks.get(worker.worker_id)


def branch_peers(root: StackBranch, branch: StackBranch, absent: Iterable[AbsentWorker]) -> list[BranchPeers]:
    """For each kind in a branch of a tree, who of that kind is not in it; the most numerous kind first."""
    here: dict[tuple[str, str | None], set[str]] = {}
    for execution in branch.executions:
        here.setdefault(_team(execution), set()).add(execution.worker_id)
    elsewhere: dict[tuple[str, str | None], list[Execution]] = {team: [] for team in here}
    for execution in root.executions:
        team = _team(execution)
        if team in here and execution.worker_id not in here[team]:
            elsewhere[team].append(execution)
    lost: dict[tuple[str, str | None], list[AbsentWorker]] = {team: [] for team in here}
    for one in absent:
        lost.get((one.kind, one.job_id), []).append(one)
    found = [BranchPeers(*team, len(ids), tuple(elsewhere[team]), tuple(lost[team])) for team, ids in here.items()]
    return sorted(found, key=lambda one: -one.here)


def _team(execution: Execution) -> tuple[str, str | None]:
    return execution.kind, execution.peer_group.job_id


def _actors(
    index: SampleIndex, lull: AbsenceReasons, there: set[str], classes: set[tuple[str, str | None]]
) -> Iterator[AbsentWorker]:
    """The actors of these classes that have no execution."""
    for actor in index.actors.values():
        kind = kind_of_actor(actor)
        if (kind, actor.job_id) in classes and actor.worker_id not in there:
            yield _actor(index, lull, actor, kind)


def _actor(index: SampleIndex, lull: AbsenceReasons, actor: Actor, kind: str) -> AbsentWorker:
    known = (index.ranks(actor.worker_id or "").in_words, f"pid {actor.pid}" if actor.pid else "")
    place = ", ".join(part for part in known if part)
    name = names.actor(actor) + (f" ({place})" if place else "")
    if actor.state == "DEAD":
        return AbsentWorker(kind, actor.job_id, name, "dead", f"is dead: {actor.death_cause or 'no cause given'}")
    worker = index.workers.get(actor.worker_id or "")
    if worker is None:
        return AbsentWorker(kind, actor.job_id, name, "without a process", f"has no process: it is {actor.state}")
    return AbsentWorker(kind, actor.job_id, name, *lull.why(worker), worker.worker_id)


def _workers(index: SampleIndex, lull: AbsenceReasons, listed: set[str]) -> Iterator[AbsentWorker]:
    """The workers that are not listed yet and were not seen, or of whose task no stack was."""
    for worker in index.snapshot.workers:
        if worker.worker_id in listed:
            continue
        why, detail = lull.why(worker)
        if why in ("not read", "unreadable"):
            actor = index.actors.get(worker.actor_id or "")
            if actor is not None:
                yield _actor(index, lull, actor, kind_of_actor(actor))
                continue
            kind = kind_of(index, worker, lull.task_in(worker))
            yield AbsentWorker(kind, worker.job_id, names.place(index, worker), why, detail, worker.worker_id)


def _unseen(index: SampleIndex, worker: Worker) -> str:
    """Why a worker's state and stacks are not known."""
    sample = index.worker_samples.get(worker.worker_id)
    if sample is not None and sample.process is not None and sample.process.threads:
        return "did not answer which tasks it runs" if sample.running_task_ids is None else "was read only in part"
    failures = index.snapshot.failures
    its = [one for one in failures if worker.worker_id == one.worker_id or _is_pid(one.pid, one.node_id, worker)]
    its = its or [one for one in failures if one.node_id == worker.node_id and one.pid is None and not one.worker_id]
    return f"was not read: {its[0].reason}" if its else "was not read"


def _is_pid(pid: int | None, node_id: str | None, worker: Worker) -> bool:
    return pid == worker.pid and node_id in (None, worker.node_id)
