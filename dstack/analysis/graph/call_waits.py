"""The waits of threads and coroutines that are blocked in a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, call_beyond_kind, for_any, waits_for
from dstack.analysis.graph.producers import PENDING, available_value, producer_of, wait_for_held
from dstack.analysis.index import subjects
from dstack.call_sites import GROUP_WAIT, kind_of, name_of, named_site
from dstack.libraries.serve.waits import wait_for_slot
from dstack.model.diagnosis import CallName, Group, GroupWait, Target, Vertex, Wait, WaitKind
from dstack.model.vertex_facts import ProcessName, Reason, assumption, reason, subject
from dstack.model.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, GroupKey, ThreadKey
from dstack.observed.calls import (
    Awaitables,
    Call,
    ChannelCall,
    Children,
    Executions,
    Futures,
    GroupCall,
    HeldRefs,
    Inference,
    KernelObjects,
    LostOwner,
    ProcessObject,
    QueueCall,
    QueuedRequest,
    Refs,
    Unreadable,
)

Waiter = ThreadKey | CoroutineKey | ChildThreadKey


@dataclass(frozen=True, slots=True)
class _BlockedCall:
    """A waiter with its call; ``loop`` is the thread that blocks the event loop of a coroutine."""

    graph: GraphBuilder
    waiter: Waiter
    call: Call
    loop: Target | None

    @property
    def worker_id(self) -> str:
        """The worker of the waiter."""
        return self.waiter.worker_id

    @property
    def kind(self) -> WaitKind:
        """The kind of a wait that ends through something unknown: of no kind of its own if the call has a name."""
        return "other" if name_of(self.call) else kind_of(self.call)


def wait_of_call(graph: GraphBuilder, waiter: Waiter, call: Call, loop: Target | None = None) -> Wait:
    """The wait of a blocked call, from its refs or from the threads and coroutines that it needs.

    If a thread blocks a coroutine's event loop, ``loop``, that thread also replaces awaited coroutines that are not
    suspended: they run there, or have ended.
    """
    blocked = _BlockedCall(graph, waiter, call, loop)
    wait = _with_interruptions(blocked, _wait_for_need(blocked))
    return replace(wait, failing=tuple(dict.fromkeys(wait.targets))) if wait.fails_fast else wait


def _with_interruptions(blocked: _BlockedCall, wait: Wait) -> Wait:
    """The wait with the timer that ends it, and with what may cancel the waiter or fail in its task group."""
    call = blocked.call
    fails_fast = isinstance(call.need, Awaitables) and call.need.fails_fast
    own = blocked.waiter.coroutine_id if isinstance(blocked.waiter, CoroutineKey) else None
    others = [_coroutine(blocked, one) for one in call.cut_short_by if one != own]
    others += [_thread(blocked, one) for one in call.cut_short_by_threads]
    if call.timer is None and not fails_fast and not others:
        return wait
    return replace(
        wait, timer=call.timer, fails_fast=fails_fast or wait.fails_fast, cut_short_by=tuple(dict.fromkeys(others))
    )


def _wait_for_need(blocked: _BlockedCall) -> Wait:
    graph, waiter, call = blocked.graph, blocked.waiter, blocked.call
    match call.need:
        case Unreadable() as unread:
            target = subject("target", kind_of(call), unread.reason)
            return waits_for(kind_of(call), graph.unknown("target", waiter, subject=target, unobserved=True))
        case HeldRefs() as held if not isinstance(waiter, ChildThreadKey):
            return wait_for_held(graph, waiter, call, held)
        case GroupCall() as of_group:
            return _wait_for_members(blocked, of_group)
        case QueuedRequest() as queued:
            return replace(wait_for_slot(graph, queued), timeout_s=call.timeout_s)
        case Refs() as refs:
            return _wait_for_refs(blocked, refs)
        case Awaitables() as awaited if awaited.refs or awaited.coroutines or awaited.futures:
            return _wait_for_awaited(blocked, awaited)
        case Executions() as executions:
            group = _any_of(blocked, executions.threads, executions.coroutines)
            count = len(executions.threads) + len(executions.coroutines)
            wait = _wait(call, (group,), 1, count, executions.inferred)
            is_lock = kind_of(call) == "lock" and executions.inferred
            return _assuming_the_holder(blocked, wait, executions) if is_lock else wait
        case Futures() as futures:
            groups = tuple(dict.fromkeys(_any_of(blocked, threads) for threads in futures.each))
            return _wait(call, groups, len(futures.each), len(futures.each), futures.inferred)
        case Children() as children:
            targets = (graph.child(blocked.worker_id, pid) for pid in dict.fromkeys(children.pids))
            return waits_for(blocked.kind, *targets, timeout_s=call.timeout_s, called=call_beyond_kind(call))
        case HeldRefs() | Awaitables() | ProcessObject() | ChannelCall() | KernelObjects() | LostOwner() | QueueCall():
            return _wait_for_unknown_waker(blocked)
        case _:
            raise TypeError(f"a need without a case: {type(call.need)}")


def reach_of(call: Call | None) -> ProcessObject:
    """The object of its process that a call needs, with what is known to reach it; empty for any other call."""
    return call.need if call is not None and isinstance(call.need, ProcessObject) else ProcessObject()


def has_known_dependency(call: Call) -> bool:
    """Whether a call names its dependencies, even if they could not be read."""
    match call.need:
        case Awaitables() as awaited:
            return bool(awaited.refs or awaited.coroutines or awaited.futures)
        case ProcessObject() | Children() | ChannelCall() | KernelObjects() | LostOwner() | QueueCall():
            return False
        case Unreadable() | HeldRefs() | GroupCall() | QueuedRequest() | Refs() | Executions() | Futures():
            return True
        case _:
            raise TypeError(f"a need without a case: {type(call.need)}")


def _wait_for_refs(blocked: _BlockedCall, need: Refs) -> Wait:
    """All of the refs in a get, some of them in a wait; refs that have a value need not be produced."""
    graph, call = blocked.graph, blocked.call
    targets = tuple(producer_of(graph, ref) for ref in need.refs if not graph.index.refs.has_value(ref))
    total = len(need.refs)
    is_wait = kind_of(call) == "ray.wait"
    needed = need.count or 1 if is_wait else total
    remaining = needed - (total - len(targets))
    if remaining <= 0:
        groups: tuple[Group, ...] = (Group(needs=1, targets=(available_value(graph, blocked.waiter),)),)
    elif is_wait:
        groups = (Group(needs=remaining, targets=targets),)
    else:
        groups = _each(targets)
    wait = _wait(call, groups, needed, total, need.inferred)
    return replace(wait, fails_fast=True) if not is_wait and len(groups) > 1 else wait


def _wait_for_awaited(blocked: _BlockedCall, need: Awaitables) -> Wait:
    """All or some of refs, coroutines, futures and unknown awaitables; refs that have a value are not needed."""
    call = blocked.call
    total = len(need.refs) + len(need.coroutines) + len(need.futures) + need.others
    needed = total if need.count is None else min(need.count, total)
    refs = [ref for ref in need.refs if not blocked.graph.index.refs.has_value(ref)]
    remaining = needed - (len(need.refs) - len(refs))
    if remaining <= 0:
        there = available_value(blocked.graph, blocked.waiter)
        return _wait(call, for_any(there), needed, total, need.inferred)
    targets = [producer_of(blocked.graph, ref) for ref in refs]
    targets += [_coroutine(blocked, coroutine) for coroutine in need.coroutines]
    targets += [_future(blocked, threads, need.inferred) for threads in need.futures]
    targets += [_unknown_waker(blocked)] if need.others else []
    if needed == total:
        return _wait(call, _each(targets), needed, total, need.inferred)
    given_by_others = max(0, need.others - 1)  # one target represents all of them, and counts once
    some = Group(needs=max(1, remaining - given_by_others), targets=tuple(targets))
    return _wait(call, (some,), needed, total, need.inferred)


def _assuming_the_holder(blocked: _BlockedCall, wait: Wait, need: Executions) -> Wait:
    """A lock does not name its holder: the execution in a ``with`` block of it may have released it by hand."""
    waker = blocked.graph.unknown_waker(CallName.of(blocked.call), blocked.worker_id, need.object_id)
    holder = "coroutine" if need.coroutines else "thread"
    return replace(
        wait,
        assumed=(assumption("lock holder", named_site(blocked.call).id, holder),),
        proven_groups=for_any(waker),
    )


def _each(targets: Iterable[Target]) -> tuple[Group, ...]:
    return tuple(Group(needs=1, targets=(target,)) for target in dict.fromkeys(targets))


def _any_of(blocked: _BlockedCall, threads: Sequence[int], coroutines: Sequence[str] = ()) -> Group:
    """One of these must proceed; an unknown waker if there are none."""
    targets = (
        *(_thread(blocked, thread) for thread in threads),
        *(_coroutine(blocked, coroutine) for coroutine in coroutines),
    )
    return Group(
        needs=1, targets=targets or (blocked.graph.unknown_waker(CallName.of(blocked.call), blocked.worker_id),)
    )


def _future(blocked: _BlockedCall, threads: Sequence[int], inferred: Inference | None) -> Target:
    """The thread that completes a future; a helper represents any of several."""
    group = _any_of(blocked, threads)
    if len(group.targets) == 1:
        return group.targets[0]
    key = AnyKey("future", (blocked.worker_id, *threads))
    wait = Wait(kind="future", groups=(group,), inferred=_why(inferred), total=len(group.targets))
    blocked.graph.add(Vertex(key=key, kind="task", subject=subject("any thread", len(group.targets)), wait=wait))
    return Target(vertex=key)


def _thread(blocked: _BlockedCall, os_thread_id: int) -> Target:
    if (pid := blocked.graph.index.child_of(blocked.waiter)) is not None:
        return blocked.graph.child(blocked.worker_id, pid, os_thread_id)
    if blocked.graph.index.thread(blocked.worker_id, os_thread_id) is None:
        thread = subject("thread of process", os_thread_id, _process(blocked))
        return blocked.graph.unknown("thread", blocked.worker_id, os_thread_id, subject=thread, unobserved=True)
    return Target(vertex=ThreadKey(blocked.worker_id, os_thread_id))


def _coroutine(blocked: _BlockedCall, coroutine_id: str) -> Target:
    index, key = blocked.graph.index, CoroutineKey(blocked.worker_id, coroutine_id)
    is_read = index.coroutine(blocked.worker_id, coroutine_id) is not None
    if is_read and index.child_of(key) == index.child_of(blocked.waiter):
        return Target(vertex=key)
    if blocked.loop:
        return blocked.loop
    coroutine = subject("coroutine", _process(blocked))
    return blocked.graph.unknown("coroutine", blocked.worker_id, coroutine_id, subject=coroutine, unobserved=True)


def _process(blocked: _BlockedCall) -> ProcessName:
    """The process of the waiter."""
    return subjects.process(blocked.graph.index, blocked.worker_id, with_pid=True)


def _wait_for_members(blocked: _BlockedCall, of_group: GroupCall) -> Wait:
    """A call on a process group, whose timeout only ends it with an error.

    :mod:`dstack.analysis.graph.group_waits` adds the members that it depends on.
    """
    wait = waits_for(blocked.kind, _unknown_waker(blocked), called=call_beyond_kind(blocked.call))
    return replace(wait, of_group=GroupWait(call=of_group, inside=(of_group.group.rank,)))


def _wait_for_unknown_waker(blocked: _BlockedCall) -> Wait:
    """A wait for an unknown waker; ``PlacementGroup.wait`` waits for one of the pending groups of its job."""
    call = blocked.call
    if named_site(call) is GROUP_WAIT and (groups := _pending_groups(blocked)):
        inferred = reason("any pending group") if len(groups) > 1 else None
        group = Group(needs=1, targets=groups)
        return Wait(kind="placement group", groups=(group,), timeout_s=call.timeout_s, inferred=inferred)
    return waits_for(blocked.kind, _unknown_waker(blocked), timeout_s=call.timeout_s, called=call_beyond_kind(call))


def _pending_groups(blocked: _BlockedCall) -> tuple[Target, ...]:
    index = blocked.graph.index
    worker = index.workers.get(blocked.worker_id)
    pending = (group for group in index.placement_groups.values() if group.state in PENDING)
    own = (group for group in pending if worker is not None and group.job_id in (worker.job_id, None))
    return tuple(Target(vertex=GroupKey(group.placement_group_id)) for group in own)


def _unknown_waker(blocked: _BlockedCall) -> Target:
    """The unknown waker of a call: one for each object, or one for actors of the same class in a job."""
    call, reach = CallName.of(blocked.call), reach_of(blocked.call)
    if reach.object_id:
        return blocked.graph.unknown_waker(call, blocked.worker_id, reach.object_id)
    return blocked.graph.unknown_waker_in(call, blocked.worker_id)


def _wait(call: Call, groups: tuple[Group, ...], needed: int, total: int, inferred: Inference | None) -> Wait:
    return Wait(
        kind=kind_of(call),
        groups=groups,
        inferred=_why(inferred),
        timeout_s=call.timeout_s,
        needed=needed,
        total=total,
        called=call_beyond_kind(call),
    )


def _why(inferred: Inference | None) -> Reason | None:
    return reason(inferred) if inferred else None
