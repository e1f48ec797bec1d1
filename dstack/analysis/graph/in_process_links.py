"""Waits on objects of the waiter's own process.

A queue, an event or a semaphore does not name what will end a wait on it. Its waker is a thread, coroutine or call that
can reach the object. If such are known (``Call.reached_by``, pending calls of the actor), the wait is for any of
them, and to be safe, for all code that can proceed in the process or call into it. That nothing else can reach the
object, as a native thread might, is an assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from dstack.analysis.graph.blocked_calls import reach_of
from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.idle_services import idle_links
from dstack.analysis.graph.users import Users
from dstack.analysis.index.ray_libraries import polled_actors
from dstack.call_sites import BARRIER, named_site
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_facts import assumption
from dstack.model.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey, UnknownKey
from dstack.observed.calls import Call

NO_OTHERS = assumption("no others")


def add_links(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of executions whose dependencies are in their own process."""
    executions = [vertex for vertex in graph.vertices.values() if vertex.kind == "execution" and vertex.wait]
    linked = {vertex.key: _linked(graph, users, vertex) for vertex in executions}
    enders = _known_wakers(graph, users, executions, linked)
    idle = idle_links(graph.vertices, enders, users.workers_with_idle_libraries())
    for vertex in executions:
        if vertex.key not in idle:
            graph.add(replace(vertex, wait=linked[vertex.key]))


def _known_wakers(
    graph: GraphBuilder, users: Users, executions: Iterable[Vertex], linked: Mapping[Key, Wait]
) -> dict[Key, tuple[Key, ...]]:
    """By waiter: what can reach the object of its wait; only for waits that were linked."""
    found: dict[Key, tuple[Key, ...]] = {}
    for vertex in executions:
        call = graph.index.call_of_vertex(vertex) if linked[vertex.key] is not vertex.wait else None
        if call is not None and has_wakers(call):
            enders = _wakers(graph, users, vertex, call)
            found[vertex.key] = tuple(dict.fromkeys(target.vertex for target in enders))
    return {key: enders for key, enders in found.items() if enders}


def has_known_wakers(call: Call | None) -> bool:
    """Whether threads or coroutines are known that can reach the object of a call."""
    reach = reach_of(call)
    return bool(reach.reached_by or reach.reached_by_coroutines)


def has_wakers(call: Call | None) -> bool:
    """Whether any code is known that can reach the object of a call: an execution, or the actor's methods."""
    return has_known_wakers(call) or reach_of(call).reached_by_actor


def _linked(graph: GraphBuilder, users: Users, vertex: Vertex) -> Wait:
    assert vertex.wait is not None, "only executions that wait are linked"
    if vertex.wait.kind == "backpressure":
        return _for_consumer(graph, users, vertex.wait)
    wait = vertex.wait
    is_open = [group.has_unknown("other side") or _is_unlisted_coroutine(graph, vertex, group) for group in wait.groups]
    call = graph.index.call_of_vertex(vertex) if any(is_open) and wait.of_group is None else None
    if call is None:
        return wait
    if reach_of(call).reached_by_actor and _is_called_again_and_again(graph, vertex):
        return wait  # each of these calls may end it
    several = tuple(_all_wakers(graph, users, vertex, call))
    if not several:
        return wait
    others = tuple(target for target in dict.fromkeys(several) if target.vertex != vertex.key)
    linked = Group(needs=1, targets=others)
    groups = tuple(dict.fromkeys(linked if open_ else group for group, open_ in zip(wait.groups, is_open, strict=True)))
    return replace(
        wait,
        groups=groups,
        total=len(linked.targets) if len(groups) == 1 else wait.total,
        is_linked=True,
        assumed=tuple(dict.fromkeys((*wait.assumed, NO_OTHERS))),
        proven_groups=wait.proven_groups if wait.assumed else wait.groups,
    )


def _for_consumer(graph: GraphBuilder, users: Users, wait: Wait) -> Wait:
    """The wait of a producer for all code that can proceed in its consumer's process, or call into it."""
    consumers = [graph.vertices[target.vertex] for target in wait.targets]
    owner = next((one.worker_id for one in consumers if isinstance(one.key, UnknownKey)), None)
    if owner is None:
        return wait
    targets = tuple(dict.fromkeys(users.of_process(owner)))
    return replace(wait, groups=(Group(needs=1, targets=targets),), total=len(targets))


def _all_wakers(graph: GraphBuilder, users: Users, vertex: Vertex, call: Call) -> Iterator[Target]:
    """All code that may end a wait, empty if none is known: a part of a library, or code of the process."""
    actors = polled_actors(graph.index, call)
    for actor in actors:
        yield from users.tasks_of(graph.index.actors[actor].worker_id or "")
        yield from users.of_listed_actor(actor)
    wakers = tuple(dict.fromkeys(_wakers(graph, users, vertex, call))) if has_wakers(call) else ()
    is_unlisted = any(
        _is_unlisted_coroutine(graph, vertex, group) for group in (vertex.wait.groups if vertex.wait else ())
    )
    if wakers or is_unlisted or _is_at_barrier(call):
        yield from wakers
        yield from users.alternatives.without_idle(users.of_process(vertex.worker_id or ""))


def _is_at_barrier(call: Call) -> bool:
    """Whether it waits at a barrier of its actor: no idle service does, and only further calls can reach it."""
    return reach_of(call).reached_by_actor and named_site(call) is BARRIER


def _is_unlisted_coroutine(graph: GraphBuilder, vertex: Vertex, group: Group) -> bool:
    """Whether it awaits a coroutine that is not suspended, although all suspended ones are known: a thread runs it."""
    worker_id = vertex.worker_id or ""
    users = graph.index.threads_with_role(worker_id, "user")  # one may run a loop without frames
    return (
        group.has_unknown("coroutine")
        and graph.index.has_read_coroutines(worker_id)
        and any(graph.index.is_waiting(worker_id, one) for one in users)
    )


def _is_called_again_and_again(graph: GraphBuilder, vertex: Vertex) -> bool:
    worker = graph.index.workers.get(vertex.worker_id or "")
    called = {call.actor_id for call in graph.index.snapshot.repeated_calls}
    return worker is not None and worker.actor_id in called


def _wakers(graph: GraphBuilder, users: Users, vertex: Vertex, call: Call) -> Iterator[Target]:
    worker_id, reach = vertex.worker_id or "", reach_of(call)
    pid = vertex.child_pid
    keys: list[Key] = [
        ThreadKey(worker_id, thread) if pid is None else ChildThreadKey(worker_id, pid, thread)
        for thread in reach.reached_by
    ]
    keys += [CoroutineKey(worker_id, coroutine) for coroutine in reach.reached_by_coroutines]
    yield from (Target(vertex=key) for key in keys if key in graph.vertices and key != vertex.key)
    if reach.reached_by_actor:
        yield from users.pending_calls_in(worker_id)
