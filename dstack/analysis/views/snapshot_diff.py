"""Two snapshots of one cluster side by side: executions, waits and findings that are new, gone or unchanged.

An execution is the same if worker, process start, thread or coroutine, task and attempt are. What is unreadable in one
of the snapshots is neither new nor gone, but unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.index.sample_index import SampleIndex, task_of
from dstack.analysis.index.shown_frames import innermost_frame
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.call_sites import kind_of
from dstack.errors import UsageError
from dstack.model.diagnosis import Finding, Since, Vertex
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.calls import Awaitables, Executions, Refs
from dstack.observed.processes import Coroutine, Frame, Thread
from dstack.words import grouped

Presence = Literal["there", "gone", "not known"]


class ComparedSnapshot:
    """One of the two snapshots, with the last observation of each process."""

    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self.snapshot = analysed.snapshot
        self.findings = analysed.diagnosis.findings
        self.vertices = analysed.diagnosis.vertices
        self.first = analysed.first_index
        self.last = analysed.last_index
        self.began_at = self.first.began_at
        self.first_ended_at = self.snapshot.taken_at + self.first.sample.ended_s
        self.ended_at = self.snapshot.taken_at + self.last.sample.ended_s

    @cached_property
    def lists_all(self) -> bool:
        """Whether workers that are not listed have ended."""
        return all(failure.stage != "control plane" for failure in self.snapshot.failures)

    def read_at(self, vertex: Vertex) -> float:
        """When the last sample that shows a wait began, in Unix seconds."""
        return (self.last if vertex.is_confirmed else self.first).began_at

    def latest(self, worker_id: str) -> SampleIndex:
        """The last sample with a worker's threads."""
        return self.last if self.last.threads(worker_id) else self.first

    def execution(self, vertex: Vertex) -> Thread | Coroutine | None:
        """A thread or coroutine in the last sample that has it."""
        return self.latest(vertex.worker_id or "").execution_of(vertex)

    def frames(self, vertex: Vertex) -> tuple[Frame, ...] | None:
        """Its stack, leaf first."""
        execution = self.execution(vertex)
        return None if execution is None else self.snapshot.frames_of(execution)

    def task_of(self, vertex: Vertex) -> str | None:
        """The task that a thread or coroutine runs, if that is certain."""
        worker_id = vertex.worker_id or ""
        index, execution = self.latest(worker_id), self.execution(vertex)
        if isinstance(execution, Coroutine):
            return execution.task_id if execution.is_task else None
        return task_of(index, worker_id, execution) if execution else None

    def knows_task_of(self, vertex: Vertex) -> bool:
        """Whether a thread or coroutine that is not known to run a task runs none."""
        worker_id = vertex.worker_id or ""
        index = self.latest(worker_id)
        sample = index.worker_samples.get(worker_id)
        if sample is None or sample.running_task_ids is None:
            return False
        return not sample.running_task_ids or vertex.coroutine_id is not None or index.has_read_tasks(worker_id)

    def runs(self, worker_id: str) -> tuple[str, ...] | None:
        """The tasks that a worker reports as running in any sample; None if it never answered."""
        samples = (index.worker_samples.get(worker_id) for index in (self.first, self.last))
        answers = [one.running_task_ids for one in samples if one and one.running_task_ids is not None]
        return tuple(task_id for answer in answers for task_id in answer) if answers else None

    def attempt(self, task_id: str | None) -> int | None:
        """The attempt of a task, if its owner reported it."""
        task = self.last.tasks.get(task_id or "") or self.first.tasks.get(task_id or "")
        return task.attempt if task else None

    def state(self, vertex: Vertex) -> tuple[object, ...] | None:
        """The state of a pending vertex, to which it never returns within one attempt."""
        if vertex.placement_group_id is not None:
            group = self.last.placement_groups.get(vertex.placement_group_id) or self.first.placement_groups.get(
                vertex.placement_group_id
            )
            return (group.state, group.requested_at) if group else None
        task = self.last.tasks.get(vertex.task_id or "") or self.first.tasks.get(vertex.task_id or "")
        return (task.state, task.attempt, task.items) if task else None


def presence_of(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """Whether an execution of one snapshot is in the other."""
    worker_id = vertex.worker_id or ""
    if worker_id not in there.first.workers:
        return "gone" if there.lists_all and worker_id in here.first.workers else "not known"
    if vertex.kind == "task":
        return _fate_of_task(vertex, here, there)
    index = there.latest(worker_id)
    own, other = here.latest(worker_id).process(worker_id), index.process(worker_id)
    if own is None or other is None or not other.threads:
        return "not known"
    if own.started_at != other.started_at:
        return "gone"
    if vertex.coroutine_id is not None and not index.has_read_coroutines(worker_id):
        return "not known"
    mine, same = here.execution(vertex), there.execution(vertex)
    if mine is None:
        return "not known"
    if same is None or (isinstance(mine, Coroutine) and mine.name != same.name):
        return "gone"
    return _fate_by_task(vertex, here, there)


def _fate_of_task(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """The thread of such a running task is unknown, so it is unknown whether the task moved."""
    worker_id = vertex.worker_id or ""
    here_running, there_running = here.runs(worker_id), there.runs(worker_id)
    if here_running is None or there_running is None or vertex.task_id not in here_running:
        return "not known"
    is_there = vertex.task_id in there_running and _is_same_attempt(vertex.task_id, here, there)
    return "not known" if is_there else "gone"


def _fate_by_task(vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> Presence:
    """Compare the tasks of a thread or coroutine that is in both snapshots."""
    mine, other = here.task_of(vertex), there.task_of(vertex)
    if mine != other:
        is_certain = all(task or side.knows_task_of(vertex) for task, side in ((mine, here), (other, there)))
        return "gone" if is_certain else "not known"
    return "there" if _is_same_attempt(mine, here, there) else "gone"


def _is_same_attempt(task_id: str | None, here: ComparedSnapshot, there: ComparedSnapshot) -> bool:
    attempts = {here.attempt(task_id), there.attempt(task_id)} - {None}
    return len(attempts) < 2


Change = Literal["new", "gone", "moved", "stayed", "not known"]


@dataclass(frozen=True, slots=True)
class ExecutionChange:
    """The change of an execution between the snapshots; ``vertex`` is its key in either or both.

    ``before`` and ``after`` are its innermost user frames. ``cpu_s`` is the CPU time of its process in between, None if
    unknown.
    """

    vertex: Key
    label: str
    change: Change
    before: Frame | None = None
    after: Frame | None = None
    cpu_s: float | None = None

    @property
    def shape(self) -> object:
        """Equal for changes that one line can show."""
        return self.change, self.label, self.before, self.after


@dataclass(frozen=True, slots=True)
class WaitChange:
    """The change of a wait.

    One that ``stayed`` is in both, with the bounds ``since`` that follow from both. It ``may_have_ended``
    and begun again in between.
    """

    vertex: Key
    label: str
    change: Change
    kind: str
    since: Since | None = None
    may_have_ended: bool = False

    @property
    def shape(self) -> object:
        """Equal for changes that one line can show."""
        return self.change, self.label, self.kind, self.may_have_ended


@dataclass(frozen=True, slots=True)
class FindingChange:
    """The change of a finding: its numbers in each snapshot, None if it is absent."""

    change: Change
    before: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotDiff:
    """All changes. ``between_s`` is the time from the end of the earlier to the beginning of the later, at least 0."""

    between_s: float
    executions: tuple[ExecutionChange, ...]
    waits: tuple[WaitChange, ...]
    findings: tuple[FindingChange, ...]
    new_workers: tuple[str, ...] = ()
    gone_workers: tuple[str, ...] = ()
    new_nodes: tuple[str, ...] = ()
    gone_nodes: tuple[str, ...] = ()


def compare(one: AnalysedSnapshot, other: AnalysedSnapshot) -> SnapshotDiff:
    """Compare the earlier of two snapshots with the later.

    Raises :class:`dstack.UsageError` if they have no node, worker or actor in common.
    """
    earlier, later = sorted((one, other), key=lambda analysed: analysed.snapshot.taken_at)
    require_same_cluster(earlier.snapshot, later.snapshot)
    return _DiffBuilder(ComparedSnapshot(earlier), ComparedSnapshot(later)).result()


def require_same_cluster(earlier: Snapshot, later: Snapshot) -> None:
    """Raise :class:`dstack.UsageError` if two snapshots have no node, worker or actor in common."""
    if not is_same_cluster(earlier, later):
        raise UsageError(
            f"These are snapshots of different clusters ({earlier.address} and {later.address}): they have no node, "
            "worker or actor in common.",
            "Compare two of the same cluster.",
        )


def is_same_cluster(earlier: Snapshot, later: Snapshot) -> bool:
    """Whether two snapshots have a node, worker or actor in common, or none at all."""
    return not _ids(earlier).isdisjoint(_ids(later)) or _ids(earlier) == _ids(later)


def _ids(snapshot: Snapshot) -> set[str]:
    return {
        *(node.node_id for node in snapshot.nodes),
        *(worker.worker_id for worker in snapshot.workers),
        *(actor.actor_id for actor in snapshot.actors),
    }


class _DiffBuilder:
    def __init__(self, before: ComparedSnapshot, after: ComparedSnapshot) -> None:
        self._before = before
        self._after = after
        self._change_of_execution: dict[Key, Change] = {}

    def result(self) -> SnapshotDiff:
        before, after = self._before, self._after
        executions = tuple(self._executions())
        self._change_of_execution = {
            moved.vertex: moved.change for moved in executions if moved.change not in ("new", "gone")
        }
        waits = tuple(self._waits())
        new_workers, gone_workers = _difference(
            (worker.worker_id for worker in before.snapshot.workers),
            (worker.worker_id for worker in after.snapshot.workers),
        )
        new_nodes, gone_nodes = _difference(
            (node.node_id for node in before.snapshot.nodes if node.alive),
            (node.node_id for node in after.snapshot.nodes if node.alive),
        )
        return SnapshotDiff(
            between_s=round(max(0.0, after.began_at - before.ended_at), 3),
            executions=executions,
            waits=waits,
            findings=tuple(self._findings(waits)),
            new_workers=new_workers if before.lists_all else (),
            gone_workers=gone_workers if after.lists_all else (),
            new_nodes=new_nodes if before.lists_all else (),
            gone_nodes=gone_nodes if after.lists_all else (),
        )

    # Executions

    def _executions(self) -> Iterator[ExecutionChange]:
        for key in _keys(self._before.vertices, self._after.vertices):
            was, now = self._before.vertices.get(key), self._after.vertices.get(key)
            was = was if was is not None and _runs(was) else None
            now = now if now is not None and _runs(now) else None
            one = was or now
            if one is None:
                continue
            fate = presence_of(one, self._before, self._after) if was else presence_of(one, self._after, self._before)
            if fate == "gone":
                if was:
                    yield self._moved(was, "gone")
                if now:
                    yield self._moved(now, "new")
            elif fate == "not known":
                yield self._moved(now or one, "not known")
            else:
                yield self._moved(now or one, "stayed" if self._is_at_the_same(one) else "moved")

    def _is_at_the_same(self, vertex: Vertex) -> bool:
        was, now = self._before.execution(vertex), self._after.execution(vertex)
        if self._before.frames(vertex) != self._after.frames(vertex) or was is None or now is None:
            return False
        return was.call is None or now.call is None or was.call.is_same_as(now.call)

    def _moved(self, vertex: Vertex, change: Change) -> ExecutionChange:
        return ExecutionChange(
            vertex=vertex.key,
            label=describe(vertex),
            change=change,
            before=innermost_frame(self._before.frames(vertex) or ()) if change != "new" else None,
            after=innermost_frame(self._after.frames(vertex) or ()) if change != "gone" else None,
            cpu_s=self._cpu_s(vertex.worker_id or "") if change in ("moved", "stayed") else None,
        )

    def _cpu_s(self, worker_id: str) -> float | None:
        was = self._before.latest(worker_id).process(worker_id)
        now = self._after.latest(worker_id).process(worker_id)
        return round(max(0.0, now.cpu_s - was.cpu_s), 2) if was and now else None

    # Waits

    def _waits(self) -> Iterator[WaitChange]:
        for key in _keys(self._before.vertices, self._after.vertices):
            was, now = _waiting(self._before.vertices.get(key)), _waiting(self._after.vertices.get(key))
            if was and now:
                yield from self._both(was, now)
            elif was:
                is_known = self._is_known(was, self._before, self._after)
                yield _waited(was, "gone" if is_known else "not known")
            elif now:
                is_known = self._is_known(now, self._after, self._before)
                yield _waited(now, "new" if is_known else "not known")

    def _both(self, was: Vertex, now: Vertex) -> Iterator[WaitChange]:
        """A vertex that waits in both snapshots, for the same or for something else."""
        fate = self._change_of_execution.get(now.key)
        is_known = fate != "not known" if _runs(now) else self._after.state(now) is not None
        if not is_known:
            yield _waited(now, "not known")
        elif (fate == "stayed" if _runs(now) else self._before.state(was) == self._after.state(now)) and _kind(
            was
        ) == _kind(now):
            proven = not _runs(now) or _cannot_begin_again(self._before.execution(was), self._after.execution(now))
            yield _waited(now, "stayed", self._since(was, now) if proven else now.since, not proven)
        else:
            yield _waited(was, "gone")
            yield _waited(now, "new")

    def _is_known(self, vertex: Vertex, here: ComparedSnapshot, there: ComparedSnapshot) -> bool:
        """Whether the other snapshot shows that this wait is absent."""
        if _runs(vertex):
            fate = self._change_of_execution.get(vertex.key)
            other = there.execution(vertex) if fate == "stayed" else None
            return fate != "not known" and (fate != "stayed" or (other is not None and other.call is not None))
        if vertex.key in there.vertices:
            return True
        if vertex.task_id is None:
            return bool(there.snapshot.samples) and there.lists_all
        task = here.first.tasks.get(vertex.task_id) or here.last.tasks.get(vertex.task_id)
        return task is not None and there.runs(task.owner_id) is not None

    def _since(self, was: Vertex, now: Vertex) -> Since:
        """Bounds from the times and the bounds of both snapshots."""
        now_at = self._after.began_at
        bounds = [0.0, now_at - self._before.first_ended_at]
        if was.since and was.since.at_least_s is not None:
            bounds.append(was.since.at_least_s + now_at - self._before.read_at(was))
        if now.since and now.since.at_least_s is not None:
            bounds.append(now.since.at_least_s)
        at_least = max(bounds)
        at_most = now.since.at_most_s if now.since else None
        return Since(
            at_least_s=round(at_least, 3) or None, at_most_s=None if at_most is None else max(at_most, at_least)
        )

    # Findings

    def _findings(self, waits: Iterable[WaitChange]) -> Iterator[FindingChange]:
        """Findings of one kind with the most common members are the same."""
        changes: dict[Key, set[Change]] = defaultdict(set)
        for wait in waits:
            changes[wait.vertex].add(wait.change)
        numbers = grouped(
            ((finding.kind, key), number)
            for number, finding in enumerate(self._before.findings)
            for key in _members(finding)
            if changes.get(key, set()).isdisjoint(("new", "gone"))
        )
        taken: set[int] = set()
        for number, finding in enumerate(self._after.findings):
            shared = Counter(n for key in _members(finding) for n in numbers.get((finding.kind, key), ()))
            same = next((n for n, _ in shared.most_common() if n not in taken), None)
            if same is None:
                yield FindingChange(change=self._change_of(finding, changes, "new"), after=number)
            else:
                taken.add(same)
                yield FindingChange(change="stayed", before=same, after=number)
        for number in range(len(self._before.findings)):
            if number not in taken:
                yield FindingChange(
                    change=self._change_of(self._before.findings[number], changes, "gone"), before=number
                )

    def _change_of(self, finding: Finding, waits: Mapping[Key, set[Change]], change: Change) -> Change:
        """The change, or ``not known`` if the other snapshot could not show the finding."""
        changes = {one for key in _members(finding) for one in waits.get(key, ())}
        return "not known" if "not known" in changes and change not in changes else change


def _cannot_begin_again(was: Thread | Coroutine | None, now: Thread | Coroutine | None) -> bool:
    """Whether equal calls in both are one wait: for values that are written once, without a timeout."""
    call = was.call if was else None
    if call is None or now is None or now.call is None or not call.is_same_as(now.call) or call.timeout_s is not None:
        return False
    match call.need:
        case Refs():
            return bool(call.refs)
        case Awaitables(others=0):
            return bool(call.refs) and not call.threads and not call.coroutines
        case Executions():
            return kind_of(call) == "thread.join"
        case _:
            return False


def _waiting(vertex: Vertex | None) -> Vertex | None:
    if vertex is None or not vertex.is_counted:
        return None
    return vertex if vertex.wait is not None or vertex.never is not None else None


def _waited(vertex: Vertex, change: Change, since: Since | None = None, may_have_ended: bool = False) -> WaitChange:
    return WaitChange(
        vertex=vertex.key,
        label=describe(vertex),
        change=change,
        kind=_kind(vertex),
        since=since,
        may_have_ended=may_have_ended,
    )


def _kind(vertex: Vertex) -> str:
    return vertex.wait.call if vertex.wait else in_words(vertex.never) if vertex.never else ""


def _runs(vertex: Vertex) -> bool:
    return vertex.kind in ("execution", "task") and vertex.worker_id is not None


def _members(finding: Finding) -> tuple[Key, ...]:
    return (*finding.members, *(blocker.vertex for blocker in finding.final_blockers))


def _keys(before: Mapping[Key, Vertex], after: Mapping[Key, Vertex]) -> Iterable[Key]:
    return {**dict.fromkeys(before), **dict.fromkeys(after)}


def _difference(before: Iterable[str], after: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The new and the ended ids."""
    was, now = dict.fromkeys(before), dict.fromkeys(after)
    return tuple(key for key in now if key not in was), tuple(key for key in was if key not in now)
