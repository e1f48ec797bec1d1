"""The second sample: what to read again, and what to read several times before it, by the waits of the first one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from itertools import chain, islice

from dstack.analysis.evidence.polling_loops import is_retried
from dstack.analysis.findings.kinds.stalled import StallCheck
from dstack.analysis.findings.outside_waits import resting, waits_outside
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.group_members import BY_CALLS
from dstack.analysis.graph.task_starts import UNEXPLAINED, pending_setups
from dstack.analysis.graph.wait_graph import wait_for_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.subjects import workers_of_jobs
from dstack.analysis.solve import reduction
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import Waits, relevant_unobserved, targets_of, waits_of
from dstack.model.diagnosis import Vertex
from dstack.model.reading_plan import LONGEST_WATCHED_S, OUTLASTING, ReadingPlan
from dstack.model.snapshot import Actor, FailedTask, GoneWorker, Snapshot, Worker, actor_of_task
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.observed.node import Cause
from dstack.words import SHOWN, grouped

MAX_LOGS, MAX_GONE = 2_000, 50
"""The most processes whose logs are read, and how many of them have ended."""
LASTING: tuple[Cause, ...] = ("unreachable", "permission", "ended", "namespace", "identity", "missing")
"""Causes of failures that a second attempt a moment later does not change."""


def plan_readings(snapshot: Snapshot) -> ReadingPlan:
    """The workers to read again, and the tasks that findings will be about, the most important first.

    Workers are read again if they take part in waits that seem stuck in the first sample, or have a timeout; if their
    job may be at rest; if they wait for something unobserved that a moment later may be observed, as a task that is
    being sent, or for a scheduler that may be placing it; and if their stacks were unreadable.
    """
    if not snapshot.samples:
        return ReadingPlan(set(), [])
    first = SampleIndex(snapshot, snapshot.samples[0])
    reduced = ReducedGraph(first, wait_for_graph(first))
    stalled = {key for chain in reduced.chains if StallCheck(reduced, chain).may_be_stalled for key in chain.waiters}
    repeating = _repeating(snapshot)
    pollers, suspected = _possible_polls(reduced, repeating)
    in_groups = [vertex for vertex in reduced.vertices.values() if _may_be_stuck_in_group(reduced, vertex)]
    pollers = [vertex for vertex in pollers if _may_be_seen_to_poll(first, vertex)]
    polling = repeating.union(vertex.worker_id for vertex in pollers if vertex.worker_id)
    polling |= {vertex.worker_id for vertex in in_groups if vertex.worker_id and vertex.wait and vertex.wait.assumed}
    outside = (*waits_outside(reduced), *(() if reduced.chains or reduced.stuck else resting(reduced)))
    jobs = reduced.jobs_of((*stalled, *(vertex.key for vertex in outside)))
    starting = {task.owner_id for task in pending_setups(first)}
    workers = {
        *_unread(snapshot),
        *(worker for vertex in (*_in_doubt(reduced, stalled), *suspected) for worker in _workers_of(vertex, first)),
        *(vertex.worker_id for vertex in in_groups if vertex.worker_id),
        *(worker.worker_id for worker in workers_of_jobs(first, jobs)),
        *(worker for chain in reduced.chains for worker in _on_cpu(reduced, chain)),
        *polling,
        *starting,
        *_sleeping_uninterruptibly(snapshot),
    }
    return ReadingPlan(
        workers=workers,
        tasks=_tasks_of_interest(reduced),
        may_be_stalled=bool(stalled or in_groups or any(_is_undecided(reduced, vertex) for vertex in outside)),
        pollers=polling,
        timeouts_s=tuple(vertex.wait.timeout_s or 0.0 for vertex in pollers if vertex.wait),
        waits_to_start=bool(starting) or any(map(_is_unexplained, reduced.vertices)),
        waits_for_nodes=any(map(_waits_for_node, reduced.vertices.values())),
        has_waits=bool(reduced.stuck or reduced.chains),
        logs_of=tuple(_with_logs(reduced, workers)),
    )


def _with_logs(reduced: ReducedGraph, workers: Collection[str]) -> Iterator[Worker]:
    """The workers whose logs may say why something waits: those in doubt, what all depends on, and who has ended."""
    index = reduced.index
    ends = (blocker.vertex for chain in reduced.chains for blocker in chain.blockers[:SHOWN])
    blocking = (worker for key in ends for worker in _workers_of(reduced.vertices[key], index))
    listed = (index.workers.get(worker_id) for worker_id in (*sorted(workers), *blocking))
    found = {worker.worker_id: worker for worker in (*_gone(index.snapshot), *filter(None, listed))}
    return islice(found.values(), MAX_LOGS)


def _gone(snapshot: Snapshot) -> Iterator[Worker]:
    """The processes that have ended: of dead actors, of failed tasks, and owners."""
    dead = (actor for actor in snapshot.actors if actor.state == "DEAD")
    ended: Iterator[Actor | FailedTask | GoneWorker] = chain(
        islice(dead, MAX_GONE), islice(snapshot.failed_tasks, MAX_GONE), snapshot.gone_workers
    )
    for one in ended:
        if one.worker_id and one.node_id and one.pid:
            yield Worker(worker_id=one.worker_id, node_id=one.node_id, ip="", port=0, pid=one.pid)


def _in_doubt(reduced: ReducedGraph, stalled: Set[Key]) -> list[Vertex]:
    """What seems stuck or stalled, has a timeout, or waits for what may be resolved a moment later."""
    keys = reduced.stuck_unless_cut_short.union(stalled, _unresolved(reduced.vertices))
    return [one for one in reduced.vertices.values() if one.key in keys or (one.wait and one.wait.is_timed)]


def _on_cpu(reduced: ReducedGraph, chain: OpenChain) -> Iterator[str]:
    """The workers of the first final blockers of a chain that are on a CPU: a second reading shows if they compute."""
    for blocker in chain.blockers[:SHOWN]:
        vertex = reduced.vertices[blocker.vertex]
        execution = reduced.index.execution_of(vertex)
        if vertex.worker_id and execution and reduced.index.is_on_cpu(vertex.worker_id, execution):
            yield vertex.worker_id


def _is_unexplained(key: Key) -> bool:
    """Whether something waits for a worker, though nothing shows what delays that."""
    return isinstance(key, UnknownKey) and key.what in UNEXPLAINED


def _waits_for_node(vertex: Vertex) -> bool:
    """Whether it is a node that something waits for, or asks for what no node has."""
    is_node = isinstance(vertex.key, UnknownKey) and vertex.key.what in ("autoscaler", "new node")
    return is_node or (vertex.never is not None and not vertex.never.is_orphaned)


def _is_undecided(reduced: ReducedGraph, outside: Vertex) -> bool:
    """Whether it matters for the verdict that nothing moves while it waits for what is outside of Ray.

    Not beside a deadlock in its job; unless it wakes by itself, which may end the deadlock.
    """
    if outside.wait is None or outside.wait.is_timed:
        return True
    job = reduced.job_of(outside)
    return job is None or job not in reduced.jobs_of(reduced.stuck)


def _may_be_stuck_in_group(reduced: ReducedGraph, vertex: Vertex) -> bool:
    """Whether it is stuck in a call on a process group, or may be by what the second sample shows of its members.

    What a member's own threads wait on is searched for in the second sample only. Train's workers and Data's readers
    often wait for such threads.
    """
    of_group = vertex.wait.of_group if vertex.wait else None
    if of_group is None:
        return False
    return vertex.key in reduced.stuck or (bool(of_group.missing) and of_group.call.group.library in BY_CALLS)


def _repeating(snapshot: Snapshot) -> frozenset[str]:
    """The workers in which the tasks run that call an actor again and again."""
    parents = {call.parent_task_id for call in snapshot.repeated_calls}
    jobs = {call.job_id for call in snapshot.repeated_calls if actor_of_task(call.parent_task_id) is None}
    drivers = {worker.worker_id for worker in snapshot.workers if worker.is_driver and worker.job_id in jobs}
    running = {w.worker_id for w in snapshot.samples[0].workers if parents.intersection(w.running_task_ids or ())}
    return frozenset(drivers | running)


def _tasks_of_interest(reduced: ReducedGraph) -> list[str]:
    """The tasks of stuck vertices, then of open chains; in each, running ones and their dependencies first."""
    chains = (reduced.vertices[key] for chain in reduced.chains for key in chain.waiters)
    stuck = (vertex for vertex in reduced.vertices.values() if vertex.key in reduced.stuck)
    tasks: dict[str, None] = {}
    for waiters in (list(stuck), list(chains)):
        running = [vertex for vertex in waiters if vertex.worker_id is not None]
        targets = (reduced.vertices[key] for vertex in running for key in targets_of(vertex))
        for vertex in (*running, *targets, *waiters):
            if vertex.task_id is not None:
                tasks[vertex.task_id] = None
    return list(tasks)


def _unread(snapshot: Snapshot) -> Iterator[str]:
    """The workers whose stacks the first sample did not read, though a second attempt may."""
    lasting = {failure.worker_id for failure in snapshot.failures if failure.cause in LASTING}
    for worker in snapshot.samples[0].workers:
        is_read = worker.process is not None and bool(worker.process.threads)
        if not is_read and worker.running_task_ids is not None and worker.worker_id not in lasting:
            yield worker.worker_id


def _sleeping_uninterruptibly(snapshot: Snapshot) -> Iterator[str]:
    """The workers with a thread in such a sleep, which may last a moment."""
    for worker in snapshot.samples[0].workers:
        halts = (process.halt for process in (worker.process.family if worker.process else ()))
        if any(halt and halt.kind == "uninterruptible" for halt in halts):
            yield worker.worker_id


def _unresolved(vertices: Mapping[Key, Vertex]) -> set[Key]:
    """What waits for something that was not observed, or for a scheduler that may be placing it, also by helpers."""
    schedulers = {key for key in vertices if isinstance(key, UnknownKey) and key.is_scheduler}
    unknown = relevant_unobserved(vertices) | schedulers
    if not unknown:
        return unknown
    waiters = grouped((target, vertex.key) for vertex in vertices.values() for target in targets_of(vertex))
    found: set[Key] = set()
    ahead = list(unknown)
    while ahead:
        new = set(waiters.get(ahead.pop(), ())) - found
        found |= new
        ahead += (key for key in new if not vertices[key].is_counted)
    return found


def _workers_of(vertex: Vertex, index: SampleIndex) -> set[str]:
    """The workers that know of a vertex: its own, the task's owner, its actor's, and the group's creators."""
    workers = {vertex.worker_id, *_makers_of_group(vertex, index)}
    if vertex.task_id:
        task = index.tasks.get(vertex.task_id)
        actor = index.actor_of_call(vertex.task_id)
        workers |= {task.owner_id if task else None, actor.worker_id if actor else None}
    return {worker for worker in workers if worker is not None}


def _makers_of_group(vertex: Vertex, index: SampleIndex) -> set[str | None]:
    """The driver, and the actor if there is one, in whose name a placement group was made."""
    group = index.placement_groups.get(vertex.placement_group_id or "")
    if group is None:
        return set()
    creator = index.actors.get(group.creator_actor_id or "")
    workers = index.snapshot.workers
    drivers = {worker.worker_id for worker in workers if worker.is_driver and worker.job_id == group.job_id}
    return {*drivers, creator.worker_id if creator else None}


# Waits that more readings may explain


def _possible_polls(reduced: ReducedGraph, repeating: Collection[str] = ()) -> tuple[list[Vertex], list[Vertex]]:
    """The loops that may only poll, and all that could never proceed if they did.

    Such loops are waits with a timeout, tasks of library code that sleep, and sleeping executions in the ``repeating``
    workers, which call an actor repeatedly.
    """
    sleeping: Waits = {
        key: [(1, [])]
        for key, vertex in reduced.vertices.items()
        if _may_sleep(reduced, vertex)
        and (vertex.worker_id in repeating or (vertex.task_id is not None and not reduced.is_in_users_code(key)))
    }
    unlinked: Waits = {key: [(1, [])] for key, vertex in reduced.vertices.items() if vertex.waker_of}
    timed = {key for key, vertex in reduced.vertices.items() if vertex.wait is not None and vertex.wait.is_timed}
    candidates = timed | sleeping.keys()
    if not candidates:
        return [], []
    waits = waits_of(reduced.vertices.values(), with_timed=True)
    at_worst = reduction.residue({**waits, **sleeping, **unlinked}) - unlinked.keys()
    more = at_worst - reduced.stuck
    if more <= sleeping.keys() and not repeating:
        return [], []
    return [reduced.vertices[key] for key in more & candidates], [reduced.vertices[key] for key in at_worst]


def _may_be_seen_to_poll(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether readings may show more than one wait: not where the first one does not time out until the last reading.

    A wait that a library is known to retry needs none.
    """
    if vertex.wait is None or not vertex.wait.is_timed:
        return True
    if (vertex.wait.timeout_s or 0.0) * OUTLASTING <= LONGEST_WATCHED_S:
        return True
    execution = index.execution_of(vertex)
    return execution is not None and is_retried(index.snapshot.frames_of(execution))


def _may_sleep(reduced: ReducedGraph, vertex: Vertex) -> bool:
    execution = reduced.index.execution_of(vertex)
    is_sleeping = execution is not None and not reduced.index.is_on_cpu(vertex.worker_id or "", execution)
    return vertex.kind == "execution" and vertex.wait is None and is_sleeping
