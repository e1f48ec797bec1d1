"""The waits of threads and coroutines that are blocked in a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.graph.refs.placement_group_refs import PENDING
from dstack.analysis.graph.refs.producers import available_value, producer_of
from dstack.analysis.graph.refs.unread_refs import wait_for_held
from dstack.analysis.graph.serve_requests import wait_for_slot
from dstack.analysis.naming import names
from dstack.analysis.naming.python_calls import lock_in_words, with_statement
from dstack.diagnosis import Group, GroupWait, Target, Vertex, Wait, WaitKind
from dstack.model import BlockedCall, GroupCall
from dstack.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, GroupKey, ThreadKey

Waiter = ThreadKey | CoroutineKey | ChildThreadKey

GROUP_WAIT = "PlacementGroup.wait"


@dataclass(frozen=True, slots=True)
class _BlockedCall:
    """A waiter with its call; ``loop`` is the thread that blocks the event loop of a coroutine."""

    graph: GraphBuilder
    waiter: Waiter
    call: BlockedCall
    loop: Target | None

    @property
    def worker_id(self) -> str:
        """The worker of the waiter."""
        return self.waiter.worker_id

    @property
    def what(self) -> str:
        """The call in the user's words."""
        return self.call.what or self.call.kind

    @property
    def other_kind(self) -> WaitKind:
        """The kind of a wait that ends through something unknown: of no kind of its own if the call has a name."""
        return "other" if self.call.what else self.call.kind


def wait_of_call(graph: GraphBuilder, waiter: Waiter, call: BlockedCall, loop: Target | None = None) -> Wait:
    """The wait of a blocked call, from its refs or from the threads and coroutines that it needs.

    If a thread blocks a coroutine's event loop, ``loop``, that thread also replaces awaited coroutines that are not
    suspended: they run there, or have ended.
    """
    one = _BlockedCall(graph, waiter, call, loop)
    if call.unread is not None:
        label = f"target of {call.kind}, which is unreadable: {call.unread}"
        return waits_for(call.kind, graph.unknown("target", waiter, label=label, unobserved=True))
    if call.held and not isinstance(waiter, ChildThreadKey):
        return wait_for_held(graph, waiter, call)
    if call.of_group is not None:
        return _wait_for_members(one, call.of_group)
    if call.queued is not None:
        return replace(wait_for_slot(graph, call.queued), timeout_s=call.timeout_s)
    match call.kind:
        case "ray.get" | "ray.wait" | "generator":
            return _wait_for_refs(one)
        case "await" if _is_for_anything(call):
            return _wait_for_awaited(one)
        case "thread.join" | "future" | "lock" if call.threads or call.all_of or call.coroutines:
            return _wait_for_executions(one)
        case _:
            return _wait_for_unknown_waker(one)


def threads_of_call(call: BlockedCall) -> set[int]:
    """The OS ids of all threads that may end the call."""
    return {*call.threads, *(thread for threads in call.all_of for thread in threads)}


def has_known_dependency(call: BlockedCall) -> bool:
    """Whether a call names its dependencies, even if they could not be read."""
    is_for_known = bool(call.refs or call.held or call.coroutines or threads_of_call(call))
    return is_for_known or call.of_group is not None or call.queued is not None or call.unread is not None


def _is_for_anything(call: BlockedCall) -> bool:
    return bool(call.refs or call.coroutines or call.threads or call.all_of)


def _wait_for_refs(one: _BlockedCall) -> Wait:
    """All of the refs in a get, some of them in a wait; refs that have a value need not be produced."""
    graph, call = one.graph, one.call
    targets = tuple(producer_of(graph, ref) for ref in call.refs if not graph.index.refs.has_value(ref))
    total = len(call.refs)
    needed = call.num_returns or 1 if call.kind == "ray.wait" else total
    still_needed = needed - (total - len(targets))
    if still_needed <= 0:
        groups: tuple[Group, ...] = (Group(needs=1, targets=(available_value(graph, one.waiter),)),)
    elif call.kind == "ray.wait":
        groups = (Group(needs=still_needed, targets=targets),)
    else:
        groups = _each(targets)
    return _wait(call, groups, needed, total)


def _wait_for_awaited(one: _BlockedCall) -> Wait:
    """All or some of refs, coroutines, futures and unknown awaitables; refs that have a value are not needed."""
    futures = (*one.call.all_of, one.call.threads) if one.call.threads else one.call.all_of
    total = len(one.call.refs) + len(one.call.coroutines) + len(futures) + one.call.others
    needed = total if one.call.num_returns is None else min(one.call.num_returns, total)
    refs = [ref for ref in one.call.refs if not one.graph.index.refs.has_value(ref)]
    still_needed = needed - (len(one.call.refs) - len(refs))
    if still_needed <= 0:
        there = available_value(one.graph, one.waiter)
        return _wait(one.call, (Group(needs=1, targets=(there,)),), needed, total)
    targets = [producer_of(one.graph, ref) for ref in refs]
    targets += [_coroutine(one, coroutine) for coroutine in one.call.coroutines]
    targets += [_future(one, threads) for threads in futures]
    targets += [_unknown_waker(one)] if one.call.others else []
    if needed == total:
        return _wait(one.call, _each(targets), needed, total)
    given_by_others = max(0, one.call.others - 1)  # one target represents all of them, and counts once
    some = Group(needs=max(1, still_needed - given_by_others), targets=tuple(targets))
    return _wait(one.call, (some,), needed, total)


def _wait_for_executions(one: _BlockedCall) -> Wait:
    """One of the threads and coroutines, or one of the threads of each of several futures."""
    several = one.call.all_of or (one.call.threads,)
    coroutines = () if one.call.all_of else one.call.coroutines
    groups = tuple(dict.fromkeys(_any_of(one, threads, coroutines) for threads in several))
    count = len(one.call.threads) + len(coroutines)
    wait = _wait(one.call, groups, len(one.call.all_of) or 1, len(one.call.all_of) or count)
    return _assuming_the_holder(one, wait) if one.call.kind == "lock" and one.call.inferred else wait


def _assuming_the_holder(one: _BlockedCall, wait: Wait) -> Wait:
    """A lock does not name its holder: the execution in a ``with`` block of it may have released it by hand."""
    unknown = Group(needs=1, targets=(one.graph.unknown_waker(one.what, one.worker_id, one.call.object_id),))
    return replace(
        wait,
        assumed=(f"{lock_in_words(one.call.what)} is held by {_holder(one.call)}",),
        proven_groups=(unknown,),
    )


def _holder(call: BlockedCall) -> str:
    holder = "coroutine" if call.coroutines else "thread"
    return f"the {holder} in {with_statement(call.what)} block of it"


def _each(targets: Iterable[Target]) -> tuple[Group, ...]:
    """A group for each target: all are needed."""
    return tuple(Group(needs=1, targets=(target,)) for target in dict.fromkeys(targets))


def _any_of(one: _BlockedCall, threads: Sequence[int], coroutines: Sequence[str] = ()) -> Group:
    """One of these must proceed; an unknown waker if there are none."""
    targets = (
        *(_thread(one, thread) for thread in threads),
        *(_coroutine(one, coroutine) for coroutine in coroutines),
    )
    return Group(needs=1, targets=targets or (one.graph.unknown_waker(one.what, one.worker_id),))


def _future(one: _BlockedCall, threads: Sequence[int]) -> Target:
    """The thread that completes a future; a helper represents any of several."""
    group = _any_of(one, threads)
    if len(group.targets) == 1:
        return group.targets[0]
    key = AnyKey("future", (one.worker_id, *threads))
    wait = Wait(kind="future", groups=(group,), inferred=one.call.inferred, total=len(group.targets))
    one.graph.add(Vertex(key=key, kind="task", label=f"any of {len(group.targets)} threads", wait=wait))
    return Target(vertex=key)


def _thread(one: _BlockedCall, os_thread_id: int) -> Target:
    if isinstance(one.waiter, ChildThreadKey):
        return one.graph.child(one.worker_id, one.waiter.pid, os_thread_id)
    if one.graph.index.thread(one.worker_id, os_thread_id) is None:
        label = f"thread {os_thread_id} of {_process(one)}, which is unreadable"
        return one.graph.unknown("thread", one.worker_id, os_thread_id, label=label, unobserved=True)
    return Target(vertex=ThreadKey(one.worker_id, os_thread_id))


def _coroutine(one: _BlockedCall, coroutine_id: str) -> Target:
    if one.graph.index.coroutine(one.worker_id, coroutine_id) is None:
        if one.loop:
            return one.loop
        label = f"coroutine of {_process(one)}, which is unreadable"
        return one.graph.unknown("coroutine", one.worker_id, coroutine_id, label=label, unobserved=True)
    return Target(vertex=CoroutineKey(one.worker_id, coroutine_id))


def _process(one: _BlockedCall) -> str:
    """``actor Clerk 5f8aed75 (pid 7)``: the process of the waiter."""
    index = one.graph.index
    worker = index.workers.get(one.worker_id)
    if worker is None:
        return "a process"
    actor = index.actors.get(worker.actor_id or "")
    return f"{names.actor(actor) if actor else names.worker(index, worker)} (pid {worker.pid})"


def _wait_for_members(one: _BlockedCall, of_group: GroupCall) -> Wait:
    """A call on a process group, whose timeout only ends it with an error.

    :mod:`dstack.analysis.graph.process_groups` adds the members that it depends on.
    """
    group = Group(needs=1, targets=(_unknown_waker(one),))
    of_group_wait = GroupWait(call=of_group, inside=(of_group.group.rank,))
    return Wait(kind=one.other_kind, groups=(group,), what=one.call.what, of_group=of_group_wait)


def _wait_for_unknown_waker(one: _BlockedCall) -> Wait:
    """A wait for an unknown waker, or for child processes.

    ``PlacementGroup.wait`` waits for one of the pending groups of its job.
    """
    if one.call.what == GROUP_WAIT and (groups := _pending_groups(one)):
        inferred = "one of the pending placement groups of its job" if len(groups) > 1 else None
        group = Group(needs=1, targets=groups)
        return Wait(kind="placement group", groups=(group,), timeout_s=one.call.timeout_s, inferred=inferred)
    children = tuple(one.graph.child(one.worker_id, pid) for pid in dict.fromkeys(one.call.child_pids))
    targets = children or (_unknown_waker(one),)
    return Wait(
        kind=one.other_kind,
        groups=(Group(needs=1, targets=targets),),
        timeout_s=one.call.timeout_s,
        total=len(targets),
        what=one.call.what,
    )


def _pending_groups(one: _BlockedCall) -> tuple[Target, ...]:
    index = one.graph.index
    worker = index.workers.get(one.worker_id)
    pending = (group for group in index.placement_groups.values() if group.state in PENDING)
    own = (group for group in pending if worker is not None and group.job_id in (worker.job_id, None))
    return tuple(Target(vertex=GroupKey(group.placement_group_id)) for group in own)


def _unknown_waker(one: _BlockedCall) -> Target:
    """The unknown waker of a call: one for each object, or one for actors of the same class in a job."""
    worker = one.graph.index.workers.get(one.worker_id)
    actor = one.graph.index.actors.get((worker.actor_id if worker else None) or "")
    if one.call.object_id:
        return one.graph.unknown_waker(one.what, one.worker_id, one.call.object_id)
    return one.graph.unknown_waker(one.what, worker.job_id if worker else None, actor.class_name if actor else None)


def _wait(call: BlockedCall, groups: tuple[Group, ...], needed: int, total: int) -> Wait:
    return Wait(
        kind=call.kind,
        groups=groups,
        inferred=call.inferred,
        timeout_s=call.timeout_s,
        needed=needed,
        total=total,
        what=call.what,
    )
