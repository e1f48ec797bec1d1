"""Changes of a program or a cluster that may free a deadlock, each as a change of the wait-for graph.

A kind of change is a function that finds where it applies, and an entry of ``KINDS``. What a change frees is found in
:mod:`dstack.analysis.findings.cures` by a reduction of the changed graph. A queued call that could start then waits in
the same way as the running calls of its function, if these are stuck; otherwise it is assumed to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dstack import words
from dstack.analysis.findings.deadlock_scope import (
    REF_WAITS,
    Change,
    DeadlockScope,
    both,
    drop,
    function_of,
    pass_on,
    without,
)
from dstack.analysis.findings.resource_changes import less_resources, more_resources
from dstack.analysis.graph.pending_tasks import is_queued
from dstack.analysis.index import ray_libraries
from dstack.analysis.index.sample_index import concurrency_group_of, has_one_slot
from dstack.analysis.naming.descriptions import any_of, describe, labels_of
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import BARRIER
from dstack.model.diagnosis import Vertex, WaitKind
from dstack.model.snapshot import Actor, actor_of_task
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.words import grouped

# Actors: slots, groups, loops


def _slots(scope: DeadlockScope) -> Iterator[Change]:
    """Another slot for the queued calls of a class of actors, or of one of its concurrency groups."""
    for (name, group), calls in scope.with_behind(scope.members, partial(_slots_of, scope)).items():
        of_actors = grouped((actor_of_task(one.task_id or ""), one) for one in calls)
        more = 1 + max(_blockers(scope, own) for own in of_actors.values())
        now = max(one.wait.total for one in calls if one.wait)
        limit = f"max_concurrency of {name}" if group is None else _threads_of_group(name, group, calls)
        text = f"raise {limit} to {now + more} (now {now})"
        yield Change("slots", 1 + (more - 1) / 10, text, scope.start(calls), None, tuple(calls))
        yield from _own_group(scope, calls)
        yield from _async_methods(scope, calls)


def _slots_of(scope: DeadlockScope, call: Vertex) -> tuple[str, str | None] | None:
    """The class of actors and the concurrency group whose slots a queued call of the user waits for.

    The group is None for actors without groups, and empty for the default one, which the caller may have replaced.
    """
    actor = scope.actor_of(call) if is_queued(call) and not scope.is_any_code(call) else None
    if actor is None or ray_libraries.is_library_actor(actor):
        return None
    process = scope.index.process(actor.worker_id or "")
    has_groups = bool(process and process.concurrency_groups) or _is_in_full_group(scope, call, actor)
    return actor.class_name, (concurrency_group_of(scope.index, call.task_id or "") or "") if has_groups else None


def _is_in_full_group(scope: DeadlockScope, call: Vertex, actor: Actor) -> bool:
    """Whether a call waits for the only running one, which is on a thread: without groups that is the main thread."""
    running = [one for key in targets_of(call) if (one := scope.vertices.get(key))]
    is_on_thread = len(running) == 1 and running[0].kind == "execution" and not running[0].coroutine_id
    return is_on_thread and not has_one_slot(scope.index, actor.worker_id or "")


def _threads_of_group(name: str, group: str, calls: Sequence[Vertex]) -> str:
    which = f"{group} of {name}" if group else f"of {any_of(calls)}"
    return f"the threads of {'' if group else 'the '}concurrency group {which}"


def _blockers(scope: DeadlockScope, calls: Sequence[Vertex]) -> int:
    """How many queued calls could take a free slot and keep it, before one starts that ends."""
    stuck = sum(scope.sibling_of(call) is not None for call in calls)
    return stuck if stuck < len(calls) else 0


def _own_group(scope: DeadlockScope, calls: Sequence[Vertex]) -> Iterator[Change]:
    """A concurrency group for a method of which no call runs on the same actor."""
    for function, own in grouped((function_of(call), call) for call in calls).items():
        if function and not any(scope.sibling_of(call, on_its_actor=True) for call in own):
            text = f"give {function} a concurrency group of its own"
            yield Change("concurrency group", 2, text, scope.start(own), None, tuple(own))


def _async_methods(scope: DeadlockScope, calls: Sequence[Vertex]) -> Iterator[Change]:
    """Async methods, which free their slots' threads while they await: an async actor has 1,000 slots (Ray 2.60)."""
    actors = {actor.actor_id: actor for call in calls if (actor := scope.actor_of(call))}
    running = [one for actor_id in actors for one in scope.of_actor.get(actor_id, ())]
    are_refs = all(one.wait and one.wait.kind in REF_CALLS and not one.coroutine_id for one in running)
    if running and are_refs and all(map(scope.is_in_python, actors.values())):
        methods = words.shortly(sorted({*labels_of(running), *labels_of(calls)}))
        text = f"make {methods} async def, with await instead of ray.get"
        yield Change("async methods", 5, text, scope.start(calls), None, tuple(calls))


def _plain_calls(scope: DeadlockScope) -> Iterator[Change]:
    """A method of its own actor that a call runs itself."""
    calling = {one.key: calls for one in scope.executions if (calls := _own_calls(scope, one))}
    for place, found in scope.places(one for one in scope.executions if one.key in calling):
        calls = [call for one in found for call in calling[one.key]]
        tasks = (scope.index.tasks.get(call.task_id or "") for call in calls)
        plain = words.listed(sorted({f"self.{task.method}()" for task in tasks if task}))
        text = f"run {plain} in {describe(found[0])} instead of a call on the actor's own handle"
        yield Change("plain call", 0.5, text, scope.start(calls), place)


def _own_calls(scope: DeadlockScope, caller: Vertex) -> list[Vertex]:
    """The queued calls that a sync method waits for and that need its own slot, none of a function that is stuck."""
    actor = scope.actor_of(caller)
    if actor is None or not scope.is_in_python(actor) or not _is_for_refs(caller) or caller.coroutine_id:
        return []
    wanted = [one for key in targets_of(caller) if (one := scope.vertices.get(key)) and is_queued(one)]
    own = [one for one in wanted if caller.key in targets_of(one) and scope.actor_of(one) == actor]
    known = [one for one in own if one.task_id in scope.index.tasks and not scope.is_any_code(one)]
    return [one for one in known if not scope.sibling_of(one, on_its_actor=True)]


def _request_limit(scope: DeadlockScope) -> Iterator[Change]:
    """Another ongoing request for each replica of a Serve deployment whose limit is reached."""
    for deployment, calls in scope.with_behind(scope.members, _full_deployment).items():
        most = max(max(one.wait.limit.most) for one in calls if one.wait and one.wait.limit)
        more = 1 + _blockers(scope, calls)
        text = f"raise max_ongoing_requests of {deployment} to {most + more} (now {most})"
        yield Change("request limit", 1 + (more - 1) / 10, text, scope.start(calls), None, tuple(calls))


def _full_deployment(request: Vertex) -> str | None:
    limit = request.wait.limit if request.wait and request.wait.kind == "Serve slot" else None
    return limit.deployment if limit and request.is_counted else None


def _awaits(scope: DeadlockScope) -> Iterator[Change]:
    """``await`` where a blocking call stops an event loop."""
    blocking = {key for one in scope.members for key in _loops_of(one)}
    blocking |= {one.key for one in scope.waiting("future") if one.key in targets_of(one) and not _is_of_pool(one)}
    for place, found in scope.places(one for one in scope.vertices.values() if one.key in blocking and one.wait):
        keys = {one.key for one in found}
        waiters = [one for one in scope.vertices.values() if one.key in keys or not keys.isdisjoint(_loops_of(one))]
        queued = [one for one in waiters if one.kind == "task"]
        text = _awaited(found[0])
        yield Change("await", 1, text, both(without(waiters, keys), scope.start(queued)), place, tuple(queued))


def _loops_of(vertex: Vertex) -> set[Key]:
    """The threads that block the event loop which a vertex needs."""
    if vertex.wait is not None and vertex.wait.loop is not None:
        return {vertex.wait.loop}
    return set(targets_of(vertex)) if vertex.wait is not None and vertex.wait.kind == "event loop" else set()


def _awaited(vertex: Vertex) -> str:
    kind, where = vertex.wait.kind if vertex.wait else None, describe(vertex)
    if kind in REF_CALLS:
        return f"await the ObjectRef instead of ray.get in {where}, which blocks its event loop"
    if kind == "lock":
        return f"use an asyncio.Lock instead of the threading.Lock in {where}, which blocks its event loop"
    call = vertex.wait.call if vertex.wait else "a call"
    return f"await instead of blocking in {call} in {where} (asyncio.Event, asyncio.wrap_future, asyncio.to_thread)"


# Waits in the program's code


def _returned_refs(scope: DeadlockScope) -> Iterator[Change]:
    """The ObjectRef is returned where a task waits for the value."""
    tasks = (one for one in scope.executions if _is_for_refs(one) and not scope.is_constructor(one))
    for place, found in scope.places(tasks):
        assert found[0].wait is not None, "members of a deadlock wait"
        text = f"return the ObjectRef instead of {found[0].wait.call} in {describe(found[0])}"
        yield Change("returned ref", 4, text, pass_on(scope, found), place)


def _is_for_refs(vertex: Vertex) -> bool:
    """Whether a task waits for the values of ObjectRefs, which it could return."""
    is_call = vertex.wait is not None and vertex.wait.kind in REF_WAITS and vertex.wait.called is None
    return is_call and vertex.subject.what == "task"


def _constructors(scope: DeadlockScope) -> Iterator[Change]:
    """The call is made after the constructor has ended."""
    for place, found in scope.places(filter(scope.is_constructor, scope.executions)):
        text = f"make the call of {describe(found[0])} after it has ended, or pass its result in as an argument"
        yield Change("constructor", 4, text, drop(found), place)


def _locks(scope: DeadlockScope) -> Iterator[Change]:
    """A lock that is not held while its holder waits, or locks that are taken in the same order."""
    acquiring = scope.waiting("lock")
    held = {key for one in acquiring for key in targets_of(one)}
    holders = [scope.vertices[key] for key in held if key in scope.vertices]
    in_locks = [one for one in holders if one.wait and one.wait.kind == "lock"]
    if len(in_locks) > 1:
        labels = words.shortly(labels_of(in_locks))
        yield Change("lock", 3, f"take the locks in the same order in {labels}", without(acquiring, held))
    for place, found in scope.places(one for one in holders if one.wait and one not in in_locks):
        text = f"release the lock in {describe(found[0])} before it waits"
        yield Change("lock", 3, text, without(acquiring, {one.key for one in found}), place)


def _kernel(scope: DeadlockScope) -> Iterator[Change]:
    """A pipe that is read, and a file lock that is released before its holder waits."""
    ends = {one.key: one.wait.ends for one in scope.members if one.wait and one.wait.ends}
    writers = [one for one in scope.members if any(end.is_write for end in ends.get(one.key, ()))]
    locks = [one for one in scope.members if any(end.what == "file lock" for end in ends.get(one.key, ()))]
    if writers:
        text = f"read what {words.shortly(labels_of(writers))} writes before waiting for anything else"
        text = f"{text}, as Popen.communicate does, or let it write to a file"
        yield Change("pipe", 3, text, drop(writers))
    if locks:
        text = f"release the file lock that {words.shortly(labels_of(locks))} needs before waiting for another process"
        yield Change("lock", 3, text, drop(locks))
    for place, found in scope.places(one for one in scope.members if one.key in ends and one not in writers + locks):
        text = f"give the wait in {describe(found[0])} a timeout, or let one side send first"
        yield Change("dropped wait", 6, text, drop(found), place)


def _barriers(scope: DeadlockScope) -> Iterator[Change]:
    """Calls that are made on the same side of a barrier by all of its parties."""
    for place, found in scope.places(scope.not_at_barrier):
        text = f"let {describe(found[0])} reach the barrier before it waits for anything else"
        yield Change("barrier", 3, text, drop(found), place)


def _threads(scope: DeadlockScope) -> Iterator[Change]:
    """More threads for an executor whose task waits for another task of it."""
    own = [one for one in scope.waiting("future") if one.key in targets_of(one) and _is_of_pool(one)]
    for place, found in scope.places(own):
        text = f"give the executor of {describe(found[0])} another thread (max_workers), or use another executor"
        yield Change("threads", 1, text, drop(found), place)


def _is_of_pool(vertex: Vertex) -> bool:
    """Whether a wait for a future of its own thread is for another task of its executor, not of its event loop."""
    return vertex.wait is not None and vertex.wait.inferred is not None


def _arguments(scope: DeadlockScope) -> Iterator[Change]:
    """A call that is submitted after its argument is made, or gets the ObjectRef in a list."""
    if calls := scope.waiting("arguments"):
        text = f"pass the ObjectRef to {any_of(calls)} inside a list, so that it starts without the value"
        text = f"{text}, or create that before the call is submitted"
        yield Change("arguments", 3, text, scope.start(calls), None, tuple(calls))


def _streams(scope: DeadlockScope) -> Iterator[Change]:
    if streams := scope.waiting("backpressure"):
        text = f"read the stream of {words.shortly(labels_of(streams))} to its end before waiting for anything else"
        yield Change("stream", 3, text, drop(streams))


def _channels(scope: DeadlockScope) -> Iterator[Change]:
    """Arrays that are copied, and actors that run the loop of one compiled graph each."""
    if kept := scope.waiting("kept value"):
        keys = {key for one in kept for key in targets_of(one)}.intersection(scope.draft.cycle)
        keeping = words.shortly(labels_of(one for one in scope.members if one.kind == "execution" and one.key in keys))
        where = f" in {keeping}" if keeping else ""
        text = (
            f"copy the arrays that are kept{where} from a compiled graph (array.copy()), or drop them before the next"
        )
        text = f"{text} execute, as they take up room in its channels"
        yield Change("channels", 3, text, drop(kept))
    if loops := [one for one in scope.members if one.is_graph_loop and one.kind == "task"]:
        text = "give each compiled graph actors of its own, or call teardown() of one before compiling the next"
        yield Change("channels", 3, text, drop(loops))
    writers = [one for one in scope.waiting("channel write") if one.subject.what != "stage"]
    if writers and not kept and not loops:
        text = (
            f"get the results of the compiled graph before its channels are full in {words.shortly(labels_of(writers))}"
        )
        yield Change("channels", 4, text, drop(writers))


def _group_calls(scope: DeadlockScope) -> Iterator[Change]:
    """The same calls on process groups in the same order, where only these keep each other from ending."""
    calls = [one for one in scope.members if one.wait and one.wait.of_group]
    is_driver = scope.draft.reduced.is_driver
    in_cycle = (one for one in scope.executions if one.key in scope.draft.cycle and one not in calls)
    others = [one for one in in_cycle if one.wait and not one.wait.called and not is_driver(one)]
    of_groups = [one.wait.of_group.call for one in calls if one.wait and one.wait.of_group]
    if not calls or others:
        return
    operations = words.shortly(sorted({call.operation for call in of_groups}))
    if absent := [one for one in scope.members if one.subject.what == "rank"]:
        text = f"let {words.shortly(labels_of(absent))} call {operations}, too"
    elif any(call.transfer for call in of_groups):
        text = "let one process request all transfers between these actors"
    elif all(call.peer is not None for call in of_groups):
        text = "let one rank send while the other receives"
    else:
        text = f"call {operations} in the same order on all ranks"
    yield Change("group calls", 4, text, drop([*calls, *absent]))


PASSED_BY: tuple[WaitKind, ...] = ("lock", "event loop", "channel read", "channel write", "kept value")
"""The waits that no change of the waiter's own code leaves out."""


def _dropped_waits(scope: DeadlockScope) -> Iterator[Change]:
    """A wait less, at any line of a task, thread or coroutine that no other kind of change is about."""
    left_out = (one for one in scope.executions if not scope.draft.reduced.is_driver(one) and one.child_pid is None)
    for place, found in scope.places(one for one in left_out if not _is_for_refs(one)):
        wait = found[0].wait
        if wait is None or wait.kind in PASSED_BY or wait.of_group or wait.polls or wait.site is BARRIER or wait.ends:
            continue
        awaited = {key for one in found for key in targets_of(one)}
        targets = [one for one in scope.members if one.key in awaited and scope.draft.reduced.is_counted(one.key)]
        others = [one for one in targets if one not in found or len(found) == 1]
        for_what = f"for {words.shortly(labels_of(others), ' or ')}" if others else f"in {wait.call}"
        for_what = "for each other" if targets and not others else for_what
        text = f"do not wait {for_what} in {describe(found[0])}"
        if wait.kind in ("thread.join", "future") and found[0].subject.what == "task":
            text += " (return first, or await asyncio.to_thread)"
        elif found[0].subject.what == "stage":
            text += " (pass the value into the compiled graph)"
        yield Change("dropped wait", 6, text, drop(found), place)


KINDS: Sequence[Callable[[DeadlockScope], Iterator[Change]]] = (
    _plain_calls,
    _slots,
    _request_limit,
    _awaits,
    _threads,
    less_resources,
    more_resources,
    _locks,
    _kernel,
    _barriers,
    _arguments,
    _streams,
    _channels,
    _constructors,
    _returned_refs,
    _group_calls,
    _dropped_waits,
)
"""The kinds of changes, each by the function that finds where it applies."""


def changes_of(scope: DeadlockScope) -> list[Change]:
    """The single changes, the smallest first."""
    return sorted((change for find in KINDS for change in find(scope)), key=lambda change: change.cost)
