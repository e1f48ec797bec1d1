"""Coverage: how much of the cluster was observed, and whether the rest could change the diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from dstack.analysis.evidence.sample_changes import ended_workers, new_workers
from dstack.analysis.solve.requirements import relevant_unobserved, targets_of
from dstack.model.diagnosis import (
    Coverage,
    Gap,
    HidingFailure,
    NoSample,
    Ratio,
    UnknownDependency,
    UnreadMemory,
    UnreadWorker,
    Vertex,
)
from dstack.model.snapshot import Snapshot, Worker
from dstack.model.vertex_keys import Key
from dstack.observed.node import Cause, Failure, Stage
from dstack.observed.processes import ACCESSES, Access
from dstack.words import grouped

ReadState = Literal["seen", "partly seen", "not seen"]
HIDING: tuple[tuple[Stage, Cause], ...] = (("core worker", "truncated"), ("Ray", "unreadable"))
"""The stages and causes of failures with workers that may hide a wait, though the worker was read."""
PASSING: tuple[Cause, ...] = ("timeout", "ended", "starting")
"""The causes of failures that another attempt a moment later may not meet."""


def coverage_of(snapshot: Snapshot) -> Coverage:
    """The observed nodes and workers of those that are alive."""
    found = read_states(snapshot)
    unseen_nodes = {worker.node_id for worker in snapshot.workers if found[worker.worker_id] != "seen"}
    seen_nodes = {worker.node_id for worker in snapshot.workers if found[worker.worker_id] == "seen"}
    alive = {node.node_id for node in snapshot.nodes if node.alive}
    hidden = unseen_nodes - seen_nodes
    return Coverage(
        nodes=Ratio(observed=len(alive - hidden), total=len(alive)),
        workers=Ratio(observed=Counter(found.values())["seen"], total=len(found)),
        access=count_access(access_of(snapshot).values()),
        failures=snapshot.failures,
    )


def is_too_little(coverage: Coverage) -> bool:
    """Whether too little was read to say how the cluster is: no node, or less than half of the workers and drivers."""
    workers = coverage.workers
    return coverage.nodes.total == 0 or 2 * workers.observed < workers.total


def access_of(snapshot: Snapshot) -> dict[str, Access]:
    """How each worker was read, in the better of two samples."""
    best: dict[str, Access] = {worker.worker_id: "state only" for worker in snapshot.workers}
    for sample in snapshot.samples:
        for worker in sample.workers:
            if worker.worker_id in best and worker.process and worker.process.threads:
                found = (best[worker.worker_id], worker.process.access)
                best[worker.worker_id] = min(found, key=ACCESSES.index)
    return best


def count_access(read: Iterable[Access]) -> dict[Access, int]:
    """How many workers were read in which way, the best first."""
    counts = Counter(read)
    return {one: counts[one] for one in ACCESSES if counts[one]}


def gaps_of(snapshot: Snapshot, vertices: Mapping[Key, Vertex]) -> Iterator[Gap]:
    """What was not observed and could be stuck, or be a dependency: workers, failures, and dependencies of waits.

    A worker that began or ended between the samples is no part of a deadlock that existed throughout. For what only the
    second sample failed to read, the first one decides.
    """
    if not snapshot.samples:
        yield NoSample()
        return
    transient = ended_workers(snapshot) | new_workers(snapshot)
    lasting = [worker for worker in snapshot.workers if worker.worker_id not in transient]
    yield from _unread(snapshot, lasting)
    for failure in snapshot.failures:
        if failure.worker_id not in transient and _may_hide(failure):
            yield HidingFailure(failure=failure)
    hidden = relevant_unobserved(vertices)
    for vertex in vertices.values() if hidden else ():
        found = (target for target in dict.fromkeys(targets_of(vertex)) if target in hidden)
        yield from (UnknownDependency(waiter=vertex.key, target=target) for target in found)


def _unread(snapshot: Snapshot, workers: Iterable[Worker]) -> Iterator[Gap]:
    """The workers of which less than everything was read, with the reasons."""
    seen, access = read_states(snapshot), access_of(snapshot)
    of_workers = grouped((failure.worker_id, failure) for failure in snapshot.failures)
    of_nodes = grouped((failure.node_id, failure) for failure in of_workers.get(None, ()) if failure.node_id)
    for worker in workers:
        state, way = seen[worker.worker_id], access[worker.worker_id]
        if state == "seen" and way == "memory":
            continue
        failures = (*of_workers.get(worker.worker_id, ()), *of_nodes.get(worker.node_id, ()))
        if state != "seen":
            is_partly_read = state == "partly seen"
            yield UnreadWorker(worker_id=worker.worker_id, is_partly_read=is_partly_read, failures=failures)
        if way not in ("memory", "state only"):
            yield UnreadMemory(worker_id=worker.worker_id, access=way, failures=failures)


def may_settle(gaps: Iterable[Gap]) -> bool:
    """Whether another snapshot, a moment later, may have none of these gaps.

    What is in motion, is starting, has just ended or did not answer in time may be observed then. What is not allowed
    or not supported is not.
    """
    return all(map(_may_pass, gaps))


def _may_pass(gap: Gap) -> bool:
    match gap:
        case UnreadWorker():
            return all(failure.cause in PASSING for failure in gap.failures)
        case HidingFailure():
            return gap.failure.cause in PASSING
        case UnknownDependency():
            return True
        case _:
            return False


def _may_hide(failure: Failure) -> bool:
    """Whether a failure may hide something stuck, though every worker counts as observed.

    A worker without an answer, or on a node without one, does not count; one that listed only some of its tasks does,
    and one whose Ray does not have what recognises its waits.
    """
    return failure.stage == "control plane" or (failure.stage, failure.cause) in HIDING


def read_workers(snapshot: Snapshot) -> set[str]:
    """The listed workers with both state and stacks."""
    return {worker_id for worker_id, state in read_states(snapshot).items() if state == "seen"}


def read_states(snapshot: Snapshot) -> dict[str, ReadState]:
    """How much of each worker was observed: every count of workers rests on this.

    A worker counts if the snapshot lists it; ended workers and dstack's own are not listed, even if a sample has them.
    It counts as seen if either sample has both its state and its stacks, and as partly seen if one has either.
    """
    found: dict[str, ReadState] = {worker.worker_id: "not seen" for worker in snapshot.workers}
    for sample in snapshot.samples:
        for worker in sample.workers:
            has_state = worker.running_task_ids is not None
            has_stacks = worker.process is not None and bool(worker.process.threads)
            if worker.worker_id not in found or found[worker.worker_id] == "seen":
                continue
            if has_state and has_stacks:
                found[worker.worker_id] = "seen"
            elif has_state or has_stacks:
                found[worker.worker_id] = "partly seen"
    return found
