"""What a thread waits for that is blocked in a call."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dstack.analysis.graph import Graph
from dstack.analysis.observed import thread_key
from dstack.analysis.producers import THERE, maker
from dstack.diagnosis import Group, Target, Wait
from dstack.model import BlockedCall


def wait_of_call(graph: Graph, worker_id: str, call: BlockedCall) -> Wait:
    """The groups of a blocked call, from its refs or from the threads it waits for."""
    if call.unread is not None:
        return graph.waits_for_unobserved(call.kind, f"target of {call.kind}, which could not be read: {call.unread}")
    match call.kind:
        case "ray.get" | "ray.wait" | "generator":
            return _wait_for_refs(graph, call)
        case "thread.join" | "future" | "lock" if call.threads or call.all_of:
            return _wait_for_threads(graph, worker_id, call)
        case _:
            return _wait_for_other_side(graph, worker_id, call)


def threads_of_call(call: BlockedCall) -> set[int]:
    """The OS ids of all threads that may end the call."""
    return {*call.threads, *(thread for threads in call.all_of for thread in threads)}


def _wait_for_refs(graph: Graph, call: BlockedCall) -> Wait:
    """All of the refs in a get, some of them in a wait; what is there already counts as given."""
    targets = tuple(maker(graph, ref) for ref in call.refs if not graph.observed.is_given(ref))
    total = len(call.refs)
    needed = call.num_returns or 1 if call.kind == "ray.wait" else total
    still_needed = needed - (total - len(targets))
    if still_needed <= 0:
        groups: tuple[Group, ...] = (Group(needs=1, targets=(graph.unknown(THERE),)),)
    elif call.kind == "ray.wait":
        groups = (Group(needs=still_needed, targets=targets),)
    else:
        groups = tuple(Group(needs=1, targets=(target,)) for target in targets)
    return Wait(
        kind=call.kind,
        groups=groups,
        evidence="inferred" if call.inferred else "exact",
        inferred=call.inferred,
        timeout_s=call.timeout_s,
        needed=needed,
        total=total,
    )


def _wait_for_threads(graph: Graph, worker_id: str, call: BlockedCall) -> Wait:
    """One of the threads, or of each of several futures one of its threads; whose are not known may go on."""
    seen = {thread.os_thread_id for thread in graph.observed.threads(worker_id)}
    if not seen.issuperset(threads_of_call(call)):
        return graph.waits_for_unobserved(call.kind, "thread that was not seen")
    several = call.all_of or (call.threads,)
    groups = tuple(dict.fromkeys(_any_of(graph, worker_id, call, threads) for threads in several))
    wait = Wait(
        kind=call.kind,
        groups=groups,
        evidence="inferred" if call.inferred else "exact",
        inferred=call.inferred,
        timeout_s=call.timeout_s,
        needed=len(call.all_of) or 1,
        total=len(several) if call.all_of else len(call.threads),
    )
    return _assuming_the_holder(graph, worker_id, call, wait) if call.kind == "lock" and call.inferred else wait


def _assuming_the_holder(graph: Graph, worker_id: str, call: BlockedCall, wait: Wait) -> Wait:
    """A lock does not name its holder; who is in a ``with`` block of it may have let it go there by hand."""
    anybody = Group(needs=1, targets=(graph.other_side(call.what or call.kind, f"{worker_id}/{call.object_id}"),))
    return replace(wait, assumed="a lock is held by the thread in a with block of it", if_not=(anybody,))


def _any_of(graph: Graph, worker_id: str, call: BlockedCall, threads: Iterable[int]) -> Group:
    targets = tuple(Target(vertex=thread_key(worker_id, thread)) for thread in threads)
    return Group(needs=1, targets=targets or (graph.other_side(call.what or call.kind, worker_id),))


def _wait_for_other_side(graph: Graph, worker_id: str, call: BlockedCall) -> Wait:
    """A wait that somebody must end of whom nothing is known: one for each object, or for alike actors of a job."""
    what = call.what or call.kind
    worker = graph.observed.workers.get(worker_id)
    actor = graph.observed.actors.get((worker.actor_id if worker else None) or "")
    group = f"{worker.job_id if worker else None}/{actor.class_name if actor else None}"
    target = graph.other_side(what, f"{worker_id}/{call.object_id}" if call.object_id else group)
    return Wait(kind=what, groups=(Group(needs=1, targets=(target,)),), timeout_s=call.timeout_s)
