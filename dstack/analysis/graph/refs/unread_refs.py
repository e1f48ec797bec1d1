"""Waits of processes whose memory could not be read: for some of the refs that they hold, and Ray does not say which.

A blocked ``ray.get`` keeps its refs alive, so they are among those that the process's own core worker counts as held.
It waits for at least one of these, so it is stuck if none of their producers can proceed. As long as it may wait for a
ref that is not known to be pending, that one counts as able to get a value.
"""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, call_beyond_kind, waits_for
from dstack.analysis.graph.refs.producers import producer_of
from dstack.analysis.index import subjects
from dstack.call_sites import kind_of
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.snapshot import is_at_hand
from dstack.model.vertex_facts import ProcessName, TaskName, assumption, reason, subject
from dstack.model.vertex_keys import AnyKey, CoroutineKey, DriverKey, ThreadKey
from dstack.observed.calls import Call, HeldRefs

AMONG_HELD = assumption("among held refs")


def wait_for_held(graph: GraphBuilder, waiter: ThreadKey | CoroutineKey, call: Call, held: HeldRefs) -> Wait:
    """The wait of a thread in a call for refs, if the refs could not be read."""
    worker_id = waiter.worker_id
    targets = _pending(graph, worker_id)
    unknown = graph.unknown("target", waiter, subject=subject("refs", kind_of(call)), unobserved=True)
    is_only = len(targets) == 1
    inferred = reason("only pending ref") if is_only else reason("any pending ref", len(targets))
    wait = waits_for(
        kind_of(call),
        *(targets or (unknown,)),
        inferred=inferred,
        timeout_s=call.timeout_s,
        called=call_beyond_kind(call),
    )
    if not targets or _may_hold_others(graph, worker_id):
        return replace(wait, groups=(Group(needs=1, targets=(*targets, unknown)),)) if targets else wait
    wait = graph.shared(AnyKey("held", (worker_id,)), wait)
    return replace(
        wait,
        assumed=(assumption("reported", held.assumed) if held.assumed else AMONG_HELD,),
        proven_groups=(Group(needs=1, targets=(unknown,)),),
    )


def add_unread_driver(graph: GraphBuilder, worker_id: str) -> None:
    """Add a driver whose stacks could not be read, if it holds pending refs; Ray does not report what drivers run."""
    worker = graph.index.workers.get(worker_id)
    if worker is None or not worker.is_driver or graph.index.threads(worker_id):
        return
    driver = subjects.worker(graph.index, worker)
    wait = wait_of_unread(graph, worker_id, driver)
    if wait.kind == "perhaps ray.get":
        key = DriverKey(worker_id)
        graph.add(Vertex(key=key, kind="task", subject=subject("process", driver), worker_id=worker_id, wait=wait))


def wait_of_unread(
    graph: GraphBuilder, worker_id: str, name: TaskName | ProcessName, task_id: str | None = None
) -> Wait:
    """The wait of running code whose stack could not be read: for any ref that its process holds, or for none."""
    stack = graph.unknown("stack", task_id or worker_id, subject=subject("stack", name), unobserved=True)
    targets = _pending(graph, worker_id)
    if not targets:
        return waits_for("thread", stack)
    wait = waits_for("perhaps ray.get", *targets, inferred=reason("unread stack"))
    shared = graph.shared(AnyKey("held", (worker_id,)), wait)
    return replace(shared, groups=(Group(needs=1, targets=(*shared.groups[0].targets, stack)),))


def _pending(graph: GraphBuilder, worker_id: str) -> tuple[Target, ...]:
    """The producers of the pending refs that a worker holds."""
    refs = (held.ref for held in graph.index.refs.held_by.get(worker_id, ()))
    return tuple(dict.fromkeys(producer_of(graph, ref) for ref in refs if not graph.index.refs.has_value(ref)))


def _may_hold_others(graph: GraphBuilder, worker_id: str) -> bool:
    """Whether it may wait for an available value that must be transferred, or for a ref that it did not report."""
    index = graph.index
    available = (held for held in index.refs.held_by.get(worker_id, ()) if index.refs.has_value(held.ref))
    return (
        index.is_unresponsive(worker_id) or worker_id in index.incomplete_workers or not all(map(is_at_hand, available))
    )
