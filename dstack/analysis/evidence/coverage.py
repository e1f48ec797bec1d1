"""How much of the cluster a diagnosis rests on, and whether what is missing could change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from dstack.analysis.evidence.sample_changes import ended_workers, new_workers
from dstack.analysis.solve.requirements import relevant_unobserved, targets_of
from dstack.diagnosis import Coverage, Ratio, Vertex
from dstack.model import ACCESSES, Access, Failure, Snapshot
from dstack.vertex_keys import Key, UnknownKey

ReadState = Literal["seen", "partly seen", "not seen"]


def coverage_of(snapshot: Snapshot) -> Coverage:
    """Nodes and workers seen of those that are alive."""
    found = read_states(snapshot)
    unseen_nodes = {worker.node_id for worker in snapshot.workers if found[worker.worker_id] != "seen"}
    seen_nodes = {worker.node_id for worker in snapshot.workers if found[worker.worker_id] == "seen"}
    alive = {node.node_id for node in snapshot.nodes if node.alive}
    hidden = unseen_nodes - seen_nodes
    return Coverage(
        nodes=Ratio(observed=len(alive - hidden), total=len(alive)),
        workers=Ratio(observed=Counter(found.values())["seen"], total=len(found)),
        access=_counted(access_of(snapshot)),
        failures=snapshot.failures,
    )


def access_of(snapshot: Snapshot) -> dict[str, Access]:
    """How each worker could be read, at the better of two looks."""
    best: dict[str, Access] = {worker.worker_id: "state only" for worker in snapshot.workers}
    for sample in snapshot.samples:
        for worker in sample.workers:
            if worker.worker_id in best and worker.process and worker.process.threads:
                found = (best[worker.worker_id], worker.process.access)
                best[worker.worker_id] = min(found, key=ACCESSES.index)
    return best


def _counted(access: Mapping[str, Access]) -> dict[Access, int]:
    """The best first."""
    counts = Counter(access.values())
    return {one: counts[one] for one in ACCESSES if counts[one]}


class CoverageGap(NamedTuple):
    """Something that was not observed and could change a verdict: what it is, and in which way it was not."""

    kind: Literal["worker", "access", "failure", "dependency"]
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def has_coverage_gaps(snapshot: Snapshot, vertices: Mapping[Key, Vertex]) -> bool:
    """Whether something that was not observed could be stuck, or be what others wait for."""
    return next(coverage_gaps(snapshot, vertices), None) is not None


def coverage_gaps(snapshot: Snapshot, vertices: Mapping[Key, Vertex]) -> Iterator[CoverageGap]:
    """All that makes a diagnosis incomplete: workers, failures, and the dependencies of waits.

    What began or ended between the samples is no part of a deadlock that stood all the while; of what only the second
    sample failed to read, the first one decides.
    """
    transient = ended_workers(snapshot) | new_workers(snapshot)
    lasting = [worker.worker_id for worker in snapshot.workers if worker.worker_id not in transient]
    seen, access = read_states(snapshot), access_of(snapshot)
    yield from (CoverageGap("worker", seen[one]) for one in lasting if seen[one] != "seen")
    yield from (CoverageGap("access", access[one]) for one in lasting if access[one] != "memory")
    for failure in snapshot.failures:
        if failure.worker_id not in transient and _may_hide(failure):
            yield CoverageGap("failure", f"{failure.stage}, {failure.cause}")
    hidden = relevant_unobserved(vertices)
    for vertex in vertices.values() if hidden else ():
        found = (target for target in targets_of(vertex) if target in hidden)
        yield from (
            CoverageGap("dependency", f"{vertex.wait.kind_name} of {_what(key)}") for key in found if vertex.wait
        )


def _may_hide(failure: Failure) -> bool:
    """Whether something that is stuck may have escaped because of a failure, though every worker was seen.

    Those without an answer, or on a node without one, are not seen; one that listed only a part of its tasks is.
    """
    return failure.stage == "control plane" or (failure.stage == "core worker" and failure.cause == "truncated")


def _what(key: Key) -> str:
    return key.what if isinstance(key, UnknownKey) else str(key)


def read_workers(snapshot: Snapshot) -> set[str]:
    """The listed workers of which both the state and the stacks were seen."""
    return {worker_id for worker_id, sight in read_states(snapshot).items() if sight == "seen"}


def read_states(snapshot: Snapshot) -> dict[str, ReadState]:
    """How much was seen of each worker: every count of workers rests on this.

    A worker counts if the snapshot lists it: those that have ended and dstack's own are not listed, even if a sample
    has them. It is seen if one sample has both its state and its stacks, whichever sample that is, so one that started
    between the samples counts like the others. It is partly seen if no sample has both, but one has something.
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
