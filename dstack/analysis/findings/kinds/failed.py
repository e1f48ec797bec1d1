"""Failed: a call failed and its result is held, but no wait is for it, and its caller waits for something else.

Ray (2.46 to 2.60) does not tell whether a result was fetched. Core workers tell which processes hold a ref, and the
memory of processes tells which refs their calls wait for. A fetched result may still be held by a variable, also in
healthy programs: so the finding needs a job that stands still, claims only what was observed, and changes no verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.failures import Failures, fix_of_call, folded, happened_ago, identity
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming.descriptions import describe
from dstack.call_sites import kind_of
from dstack.model.diagnosis import Advice, FailedBefore, FindingKind, Step, Vertex
from dstack.model.snapshot import FailedTask, is_of_driver, producer_task_id
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.observed.processes import Process
from dstack.words import SHOWN, grouped

EXPLAINED: tuple[FindingKind, ...] = ("stalled", "orphaned")
"""The kinds whose findings name the failures beside them."""
MIN_AGE_S = 5.0
"""A younger failure may be fetched in a moment; in a job that is stuck it counts at once."""
MAX_WAITS = 100
"""Waits of the callers that are kept for each failure."""


def find(reduced: ReducedGraph, others: Sequence[Draft]) -> Iterator[Draft]:
    """One draft for similar failures in jobs that stand still, or that are stuck by the ``others``.

    Not for those that another finding names as its cause.
    """
    stuck = {job for draft in others if not draft.is_open or draft.kind == "stalled" for job in draft.jobs}
    found = _UnfetchedFailures(reduced, stuck).waits_by_task()
    known = Failures(reduced)
    named = {identity(one) for draft in others if draft.kind in EXPLAINED for one in known.beside(draft)}
    failures = (one for one in known.held() if one.task_id in found and identity(one) not in named)
    for failure in list(folded(failures))[:SHOWN]:
        yield Draft(reduced, "failed", found[failure.task_id or ""], is_open=True, failure=failure)


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What failed and when, and what its caller waits in meanwhile."""
    failure, first = _failure(facts), facts.waits[0]
    return (
        f"{failure.name} {happened_ago(failure)}; nothing waits for its result: "
        f"{describe(first)} waits in {_call(first)}{narrator.line(first)}"
    )


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The callers with their waits, and what is known of the result."""
    yield from narrator.similar_steps(facts.waits, "")
    first = facts.waits[0]
    if has_waited_since(first, _failure(facts)):
        yield Step(
            text=f"{describe(first)} has been in this wait since before the failure, so it has not fetched the error"
        )
    else:
        yield Step(text="Ray does not tell whether the result was fetched before, so this is likely, not proven")


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """To correct the error, and to fetch it early."""
    return Advice(kind="fix", text=fix_of_call(_failure(facts)))


def has_waited_since(vertex: Vertex, failure: FailedBefore) -> bool:
    """Whether a vertex is known to be in its wait since before the failure."""
    at_least_s = vertex.since.at_least_s if vertex.since else None
    return failure.ago_s is not None and at_least_s is not None and at_least_s >= failure.ago_s


def _failure(facts: FindingFacts) -> FailedBefore:
    assert facts.draft.failure is not None, "drafts of this kind have a failure"
    return facts.draft.failure


def _call(vertex: Vertex) -> str:
    return vertex.wait.call if vertex.wait else "a wait"


# Which failures are likely unfetched


class _UnfetchedFailures:
    """The failed tasks of one snapshot that are likely unfetched; those of ``stuck`` jobs whatever else moves."""

    def __init__(self, reduced: ReducedGraph, stuck: Collection[str]) -> None:
        self._reduced = reduced
        self._snapshot = reduced.index.snapshot
        self._stuck = stuck

    def waits_by_task(self) -> dict[str, tuple[Key, ...]]:
        """The failed tasks with held results that no call waits for, with what their callers wait in.

        They are of jobs that are stuck, or that stand still since the failure.
        """
        found: dict[str, tuple[Key, ...]] = {}
        for task in self._snapshot.failed_tasks:
            is_unawaited = task.is_held and task.task_id not in self._awaited
            callers = self._waiting_callers(task) if is_unawaited else []
            if callers and (task.job_id in self._stuck or self._stands_still(task, callers)):
                found[task.task_id] = tuple(vertex.key for vertex in callers[:MAX_WAITS])
        return found

    @cached_property
    def _awaited(self) -> set[str]:
        """The tasks for whose results any call of any sample waits."""
        samples = (*self._snapshot.samples, *self._snapshot.readings)
        processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
        return {producer_task_id(ref) for one in processes for ref in _awaited_refs(one)}

    def _stands_still(self, task: FailedTask, callers: Sequence[Vertex]) -> bool:
        """Whether the callers made no call after the failure that they wait for, and the job is silent since."""
        progress = self._reduced.progress((task.job_id,))
        if task.failed_at is None or (progress and progress.has_moved):
            return False
        awaited = (target.ref for vertex in callers if vertex.wait for target in vertex.wait.targets)
        times = (self._snapshot.task_times.get(producer_task_id(ref)) for ref in awaited if ref)
        calls_at = (one.submitted_at for one in times if one and one.submitted_at is not None)
        return not any(at > task.failed_at for at in calls_at) and self._is_silent_since(task, task.failed_at)

    def _is_silent_since(self, task: FailedTask, failed_at: float) -> bool:
        """Whether nothing of the job has ended for at least half of the time since the failure.

        Calls that began together end at different times, so the silence may begin after the failure.
        """
        window = self._snapshot.task_event_window
        if window is None:
            return False
        last_at = max(window.last_ended_at.get(task.job_id, 0.0), self._last_failed_at(task.job_id))
        if not self._snapshot.has_one_time:
            return last_at <= failed_at
        age_s = self._snapshot.taken_at + self._snapshot.samples[-1].ended_s - failed_at
        return age_s >= MIN_AGE_S and last_at - failed_at <= age_s / 2

    def _last_failed_at(self, job_id: str) -> float:
        return max((one.failed_at or 0.0 for one in self._snapshot.failed_tasks if one.job_id == job_id), default=0.0)

    def _waiting_callers(self, task: FailedTask) -> list[Vertex]:
        """The task's caller, else the executions of the processes that hold its result; none if one of them runs."""
        callers = self._callers(task) or self._holders(task)
        return callers if all(map(self._waits_elsewhere, callers)) else []

    def _callers(self, task: FailedTask) -> list[Vertex]:
        """The execution that called the task."""
        parent = task.parent_task_id or ""
        if parent and is_of_driver(parent):
            return self._drivers.get(task.job_id, [])
        return self._by_task.get(parent, [])

    def _holders(self, task: FailedTask) -> list[Vertex]:
        """The executions in the user's code of the processes that hold the result."""
        found = (vertex for worker_id in task.holders for vertex in self._by_worker.get(worker_id, ()))
        return [vertex for vertex in found if self._reduced.is_in_users_code(vertex.key)]

    @cached_property
    def _executions(self) -> list[Vertex]:
        return [vertex for vertex in self._reduced.vertices.values() if vertex.kind == "execution"]

    @cached_property
    def _drivers(self) -> Mapping[str, list[Vertex]]:
        """The main threads of drivers by job."""
        drivers = filter(self._reduced.is_driver, self._executions)
        return grouped((self._reduced.job_of(vertex) or "", vertex) for vertex in drivers)

    @cached_property
    def _by_task(self) -> Mapping[str, list[Vertex]]:
        return grouped((one.task_id, one) for one in self._executions if one.task_id)

    @cached_property
    def _by_worker(self) -> Mapping[str, list[Vertex]]:
        own = (one for one in self._executions if one.child_pid is None)
        return grouped((one.worker_id, one) for one in own if one.worker_id)

    def _waits_elsewhere(self, vertex: Vertex) -> bool:
        """Whether an execution of the application waits for something that is certainly not the result."""
        if vertex.wait is None or vertex.wait.kind == "perhaps ray.get" or self._reduced.is_library_code(vertex.key):
            return False
        call = self._reduced.index.call_of_vertex(vertex)
        return call is None or kind_of(call) not in REF_CALLS or bool(call.refs)


def _awaited_refs(process: Process) -> Iterator[str]:
    for one in process.family:
        for call in one.calls():
            yield from call.refs
