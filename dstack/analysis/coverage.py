"""How much of the cluster a diagnosis rests on, and whether what is missing could change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dstack.diagnosis import Coverage, Ratio, Vertex
from dstack.model import ACCESSES, Access, Snapshot
from dstack.vertex_keys import Key


def coverage_of(snapshot: Snapshot) -> Coverage:
    """Nodes and workers seen of those that are alive. A worker is seen when both its state and its stacks were."""
    seen = seen_workers(snapshot)
    unseen_nodes = {worker.node_id for worker in snapshot.workers if worker.worker_id not in seen}
    seen_nodes = {worker.node_id for worker in snapshot.workers if worker.worker_id in seen}
    alive = {node.node_id for node in snapshot.nodes if node.alive}
    hidden = unseen_nodes - seen_nodes
    return Coverage(
        nodes=Ratio(seen=len(alive - hidden), total=len(alive)),
        workers=Ratio(seen=len(seen), total=len(snapshot.workers)),
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


def has_holes(snapshot: Snapshot, vertices: Mapping[Key, Vertex]) -> bool:
    """Whether somebody who was not observed could be stuck, or be what others wait for."""
    if len(seen_workers(snapshot)) < len(snapshot.workers):
        return True
    if any(access != "memory" for access in access_of(snapshot).values()):
        return True
    if any(failure.stage in ("control plane", "core worker", "node probe") for failure in snapshot.failures):
        return True
    waits = [vertex.wait for vertex in vertices.values() if vertex.wait]
    return any(vertices[t.vertex].unobserved for wait in waits for group in wait.groups for t in group.targets)


def seen_workers(snapshot: Snapshot) -> set[str]:
    """The workers of which both the state and the stacks were seen."""
    return {
        worker.worker_id
        for sample in snapshot.samples
        for worker in sample.workers
        if worker.running_task_ids is not None and worker.process is not None and worker.process.threads
    }
