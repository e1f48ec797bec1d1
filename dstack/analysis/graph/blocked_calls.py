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
from dstack.observed import BlockedCall, GroupCall
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
    blocked = _BlockedCall(graph, waiter, call, loop)
    if call.unread is not None:
        label = f"target of {call.kind}, which is unreadable: {call.unread}"
        return waits_for(call.kind, graph.unknown("target", waiter, label=label, unobserved=True))
    if call.held and not isinstance(waiter, ChildThreadKey):
        return wait_for_held(graph, waiter, call)
    if call.of_group is not None:
        return _wait_for_members(blocked, call.of_group)
    if call.queued is not None:
        return replace(wait_for_slot(graph, call.queued), timeout_s=call.timeout_s)
    match call.kind:
        case "ray.get" | "ray.wait" | "generator":
            return _wait_for_refs(blocked)
        case "await" if call.refs or call.coroutines or call.threads or call.all_of:
            return _wait_for_awaited(blocked)
        case "thread.join" | "future" | "lock" if call.threads or call.all_of or call.coroutines:
            return _wait_for_executions(blocked)
        case _:
            return _wait_for_unknown_waker(blocked)


def threads_of_call(call: BlockedCall) -> set[int]:
    """The OS ids of all threads that may end the call."""
    return {*call.threads, *(thread for threads in call.all_of for thread in threads)}


def has_known_dependency(call: BlockedCall) -> bool:
    """Whether a call names its dependencies, even if they could not be read."""
    is_for_known = bool(call.refs or call.held or call.coroutines or threads_of_call(call))
    return is_for_known or call.of_group is not None or call.queued is not None or call.unread is not None


def _wait_for_refs(blocked: _BlockedCall) -> Wait:
    """All of the refs in a get, some of them in a wait; refs that have a value need not be produced."""
    graph, call = blocked.graph, blocked.call
    targets = tuple(producer_of(graph, ref) for ref in call.refs if not graph.index.refs.has_value(ref))
    total = len(call.refs)
    needed = call.num_returns or 1 if call.kind == "ray.wait" else total
    remaining = needed - (total - len(targets))
    if remaining <= 0:
        groups: tuple[Group, ...] = (Group(needs=1, targets=(available_value(graph, blocked.waiter),)),)
    elif call.kind == "ray.wait":
        groups = (Group(needs=remaining, targets=targets),)
    else:
        groups = _each(targets)
    return _wait(call, groups, needed, total)


def _wait_for_awaited(blocked: _BlockedCall) -> Wait:
    """All or some of refs, coroutines, futures and unknown awaitables; refs that have a value are not needed."""
    futures = (*blocked.call.all_of, blocked.call.threads) if blocked.call.threads else blocked.call.all_of
    total = len(blocked.call.refs) + len(blocked.call.coroutines) + len(futures) + blocked.call.others
    needed = total if blocked.call.num_returns is None else min(blocked.call.num_returns, total)
    refs = [ref for ref in blocked.call.refs if not blocked.graph.index.refs.has_value(ref)]
    remaining = needed - (len(blocked.call.refs) - len(refs))
    if remaining <= 0:
        there = available_value(blocked.graph, blocked.waiter)
        return _wait(blocked.call, (Group(needs=1, targets=(there,)),), needed, total)
    targets = [producer_of(blocked.graph, ref) for ref in refs]
    targets += [_coroutine(blocked, coroutine) for coroutine in blocked.call.coroutines]
    targets += [_future(blocked, threads) for threads in futures]
    targets += [_unknown_waker(blocked)] if blocked.call.others else []
    if needed == total:
        return _wait(blocked.call, _each(targets), needed, total)
    given_by_others = max(0, blocked.call.others - 1)  # one target represents all of them, and counts once
    some = Group(needs=max(1, remaining - given_by_others), targets=tuple(targets))
    return _wait(blocked.call, (some,), needed, total)


def _wait_for_executions(blocked: _BlockedCall) -> Wait:
    """One of the threads and coroutines, or one of the threads of each of several futures."""
    several = blocked.call.all_of or (blocked.call.threads,)
    coroutines = () if blocked.call.all_of else blocked.call.coroutines
    groups = tuple(dict.fromkeys(_any_of(blocked, threads, coroutines) for threads in several))
    count = len(blocked.call.threads) + len(coroutines)
    wait = _wait(blocked.call, groups, len(blocked.call.all_of) or 1, len(blocked.call.all_of) or count)
    return _assuming_the_holder(blocked, wait) if blocked.call.kind == "lock" and blocked.call.inferred else wait


def _assuming_the_holder(blocked: _BlockedCall, wait: Wait) -> Wait:
    """A lock does not name its holder: the execution in a ``with`` block of it may have released it by hand."""
    unknown = Group(
        needs=1, targets=(blocked.graph.unknown_waker(blocked.what, blocked.worker_id, blocked.call.object_id),)
    )
    return replace(
        wait,
        assumed=(f"{lock_in_words(blocked.call.what)} is held by {_holder(blocked.call)}",),
        proven_groups=(unknown,),
    )


def _holder(call: BlockedCall) -> str:
    holder = "coroutine" if call.coroutines else "thread"
    return f"the {holder} in {with_statement(call.what)} block of it"


def _each(targets: Iterable[Target]) -> tuple[Group, ...]:
    return tuple(Group(needs=1, targets=(target,)) for target in dict.fromkeys(targets))


def _any_of(blocked: _BlockedCall, threads: Sequence[int], coroutines: Sequence[str] = ()) -> Group:
    """One of these must proceed; an unknown waker if there are none."""
    targets = (
        *(_thread(blocked, thread) for thread in threads),
        *(_coroutine(blocked, coroutine) for coroutine in coroutines),
    )
    return Group(needs=1, targets=targets or (blocked.graph.unknown_waker(blocked.what, blocked.worker_id),))


def _future(blocked: _BlockedCall, threads: Sequence[int]) -> Target:
    """The thread that completes a future; a helper represents any of several."""
    group = _any_of(blocked, threads)
    if len(group.targets) == 1:
        return group.targets[0]
    key = AnyKey("future", (blocked.worker_id, *threads))
    wait = Wait(kind="future", groups=(group,), inferred=blocked.call.inferred, total=len(group.targets))
    blocked.graph.add(Vertex(key=key, kind="task", label=f"any of {len(group.targets)} threads", wait=wait))
    return Target(vertex=key)


def _thread(blocked: _BlockedCall, os_thread_id: int) -> Target:
    if isinstance(blocked.waiter, ChildThreadKey):
        return blocked.graph.child(blocked.worker_id, blocked.waiter.pid, os_thread_id)
    if blocked.graph.index.thread(blocked.worker_id, os_thread_id) is None:
        label = f"thread {os_thread_id} of {_process(blocked)}, which is unreadable"
        return blocked.graph.unknown("thread", blocked.worker_id, os_thread_id, label=label, unobserved=True)
    return Target(vertex=ThreadKey(blocked.worker_id, os_thread_id))


def _coroutine(blocked: _BlockedCall, coroutine_id: str) -> Target:
    if blocked.graph.index.coroutine(blocked.worker_id, coroutine_id) is None:
        if blocked.loop:
            return blocked.loop
        label = f"coroutine of {_process(blocked)}, which is unreadable"
        return blocked.graph.unknown("coroutine", blocked.worker_id, coroutine_id, label=label, unobserved=True)
    return Target(vertex=CoroutineKey(blocked.worker_id, coroutine_id))


def _process(blocked: _BlockedCall) -> str:
    """``actor Clerk 5f8aed75 (pid 7)``: the process of the waiter."""
    index = blocked.graph.index
    worker = index.workers.get(blocked.worker_id)
    if worker is None:
        return "a process"
    actor = index.actors.get(worker.actor_id or "")
    return f"{names.actor(actor) if actor else names.worker(index, worker)} (pid {worker.pid})"


def _wait_for_members(blocked: _BlockedCall, of_group: GroupCall) -> Wait:
    """A call on a process group, whose timeout only ends it with an error.

    :mod:`dstack.analysis.graph.process_groups` adds the members that it depends on.
    """
    wait = waits_for(blocked.other_kind, _unknown_waker(blocked), what=blocked.call.what)
    return replace(wait, of_group=GroupWait(call=of_group, inside=(of_group.group.rank,)))


def _wait_for_unknown_waker(blocked: _BlockedCall) -> Wait:
    """A wait for an unknown waker, or for child processes.

    ``PlacementGroup.wait`` waits for one of the pending groups of its job.
    """
    if blocked.call.what == GROUP_WAIT and (groups := _pending_groups(blocked)):
        inferred = "one of the pending placement groups of its job" if len(groups) > 1 else None
        group = Group(needs=1, targets=groups)
        return Wait(kind="placement group", groups=(group,), timeout_s=blocked.call.timeout_s, inferred=inferred)
    children = tuple(blocked.graph.child(blocked.worker_id, pid) for pid in dict.fromkeys(blocked.call.child_pids))
    targets = children or (_unknown_waker(blocked),)
    return waits_for(blocked.other_kind, *targets, timeout_s=blocked.call.timeout_s, what=blocked.call.what)


def _pending_groups(blocked: _BlockedCall) -> tuple[Target, ...]:
    index = blocked.graph.index
    worker = index.workers.get(blocked.worker_id)
    pending = (group for group in index.placement_groups.values() if group.state in PENDING)
    own = (group for group in pending if worker is not None and group.job_id in (worker.job_id, None))
    return tuple(Target(vertex=GroupKey(group.placement_group_id)) for group in own)


def _unknown_waker(blocked: _BlockedCall) -> Target:
    """The unknown waker of a call: one for each object, or one for actors of the same class in a job."""
    worker = blocked.graph.index.workers.get(blocked.worker_id)
    actor = blocked.graph.index.actors.get((worker.actor_id if worker else None) or "")
    if blocked.call.object_id:
        return blocked.graph.unknown_waker(blocked.what, blocked.worker_id, blocked.call.object_id)
    return blocked.graph.unknown_waker(
        blocked.what, worker.job_id if worker else None, actor.class_name if actor else None
    )


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
