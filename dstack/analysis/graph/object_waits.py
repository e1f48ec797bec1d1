"""Waits on objects of a process or of the kernel, for the code that can reach them or has their other ends.

A queue, an event or a semaphore does not name what will end a wait on it. Its waker is a thread, coroutine or call that
can reach the object. If such are known (``Call.reached_by``, pending calls of the actor), the wait is for any of
them, and to be safe, for all code that can proceed in the process or call into it. That nothing else can reach the
object, as a native thread might, is an assumption.

A consumer in ``queue.get`` and a main thread in ``stop.wait`` can each reach the other's object, so each may end the
other's wait: by the observations, a cycle. But all idle services have such waits. A request, a signal, or a socket of
the event loop ends them. They are only likely to never end if their wakers are stuck elsewhere: in a call to Ray, in a
call that does not begin, in the wait for a lock, or in the wait for an event loop that one of them blocks.

A wait in the kernel, for a process at the other end of a pipe or socket, the holder of a file lock, or a child, is
known if all its ends lead to processes that were read. Any thread of these may end it, and to be safe, all code that
can proceed in them or call into them. Whatever else may end it makes its waker unknown: a listening socket, a signal, a
terminal, a process outside of the jobs, a native thread of the waiter's own process. So does a pipe of which only the
waiter's own process has the other end: which of its code would write is not known. A coroutine may be ended by what its
event loop watches, or by other code of its process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, for_any
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.graph.users import Users
from dstack.analysis.index.ray_libraries import polled_actors
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import BARRIER, named_site
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_facts import assumption, subject
from dstack.model.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, Key, ThreadKey, UnknownKey
from dstack.observed.calls import REF_CALLS, Call, Children, End, KernelObjects, ProcessObject, StoreUse
from dstack.words import grouped

NO_OTHERS = assumption("no others")
ONLY_THE_ENDS = assumption("only the ends")


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
    return replace(wait, groups=for_any(*targets), total=len(targets))


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
    worker = graph.index.worker_of(vertex)
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


# Idle services


def idle_links(
    vertices: Mapping[Key, Vertex], wakers: Mapping[Key, tuple[Key, ...]], serving: Collection[str] = ()
) -> set[Key]:
    """The waits that lead only to waits of idle services; ``wakers`` maps each candidate to what may end it.

    A wait that leads to running code is not among them: its waker is known. In workers that are ``serving``, idle
    threads of libraries may have work, so a blocked event loop does not explain the wait.
    """
    ahead: dict[Key, list[Key]] = {key: [] for key in wakers}
    unvisited = list(wakers)
    while unvisited:
        key = unvisited.pop()
        vertex = vertices.get(key)
        if vertex is None or (key not in wakers and not _is_inside(vertex, serving)):
            continue
        ahead[key] = [*wakers.get(key, ())] or list(targets_of(vertex))
        for target in ahead[key]:
            if target not in ahead:
                ahead[target] = []
                unvisited.append(target)
    known = [key for key in ahead if not isinstance(key, UnknownKey)]
    active = (key for key in known if not _is_idle(vertices.get(key), wakers, serving))
    return set(wakers) - _reaching(ahead, active)


def _is_idle(vertex: Vertex | None, wakers: Mapping[Key, tuple[Key, ...]], serving: Collection[str]) -> bool:
    """Whether it waits as idle services do, or for a vertex in such a wait."""
    if vertex is None or vertex.wait is None or not _is_inside(vertex, serving):
        return False
    return vertex.key not in wakers or vertex.wait.site.may_be_idle


def _is_inside(vertex: Vertex, serving: Collection[str]) -> bool:
    """Whether it waits inside its own process, neither for a lock nor for its blocked event loop."""
    wait = vertex.wait
    if wait is None or wait.is_timed or wait.of_group is not None:
        return False
    if wait.kind in (*REF_CALLS, "lock") or (wait.kind == "event loop" and vertex.worker_id not in serving):
        return False
    is_inside = isinstance(vertex.key, (ThreadKey, CoroutineKey, ChildThreadKey, AnyKey))
    return is_inside and not any(target.ref for target in wait.targets)


def may_be_idle(wait: Wait) -> bool:
    """Whether an idle service may be in such a wait, until input from outside ends it."""
    return wait.is_linked and wait.site.may_be_idle


def _reaching(ahead: Mapping[Key, Iterable[Key]], keys: Iterable[Key]) -> set[Key]:
    """The keys, and all keys from which one of them is reached."""
    behind = grouped((target, key) for key, targets in ahead.items() for target in targets)
    found = set(keys)
    level = list(found)
    while level:
        level = [key for one in level for key in behind.get(one, ()) if key not in found]
        found.update(level)
    return found


# Objects of the kernel


def add_kernel_waits(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of executions in system calls, and for child processes."""
    for vertex in [vertex for vertex in graph.vertices.values() if vertex.kind == "execution" and vertex.wait]:
        call = graph.index.call_of_vertex(vertex)
        if call is None or vertex.wait is None or vertex.wait.polls:
            continue
        match call.need:
            case KernelObjects(store=StoreUse() as store) as need:
                graph.add(
                    replace(vertex, wait=_for_store(graph, users, vertex, replace(vertex.wait, kernel=need), store))
                )
            case KernelObjects() as need:
                graph.add(replace(vertex, wait=_with_ends(graph, users, vertex, vertex.wait, need)))
            case ProcessObject(ends=ends) if ends:
                need = KernelObjects(system_call="epoll_wait", ends=ends, is_by_thread=True)
                graph.add(replace(vertex, wait=_with_ends(graph, users, vertex, vertex.wait, need)))
            case Children() as need:
                graph.add(replace(vertex, wait=_for_children(graph, users, vertex, vertex.wait, need)))


def _for_store(graph: GraphBuilder, users: Users, vertex: Vertex, wait: Wait, store: StoreUse) -> Wait:
    """The wait for any code of the job: it may set the key, serve the store, or connect to it.

    A process of another job may do so, too, if the store is in no observed process; else that none does is assumed.
    """
    worker_id = vertex.worker_id or ""
    worker, actor = graph.index.workers.get(worker_id), graph.index.actor_of_worker(worker_id)
    job_id = (worker.job_id if worker else None) or (actor.job_id if actor else None)
    if job_id is None or wait.kernel is None:
        return wait
    target = users.of_job(job_id)
    places = [place for end in wait.kernel.ends for _, place in graph.index.places_of(worker_id, end)]
    is_refused = any(end.state == "refused" for end in wait.kernel.ends)
    if not is_refused and (not places or None in places):
        return replace(wait, groups=for_any(*wait.targets, target))
    does = f"sets {' or '.join(store.keys)}" if store.keys else "connects to" if store.is_server else "listens at"
    what = assumption("store", does if store.keys else f"{does} {store.address}")
    return replace(wait, groups=for_any(target), total=1, assumed=(what,), proven_groups=wait.groups)


def _for_children(graph: GraphBuilder, users: Users, vertex: Vertex, wait: Wait, need: Children) -> Wait:
    """The wait for any thread of the children: each of them may end its process, as a watchdog does."""
    found = (target for pid in need.pids for target in _may_end(graph, users, vertex.worker_id or "", pid))
    targets = tuple(dict.fromkeys(found))
    return replace(wait, groups=for_any(*targets), total=len(targets)) if targets else wait


def _may_end(graph: GraphBuilder, users: Users, worker_id: str, pid: int) -> Iterator[Target]:
    """What may end a child process: its main thread, or any other that can proceed."""
    yield graph.child(worker_id, pid)
    yield from users.of_child(worker_id, pid) if graph.index.child(worker_id, pid) else ()


def _with_ends(graph: GraphBuilder, users: Users, vertex: Vertex, wait: Wait, need: KernelObjects) -> Wait:
    """The wait for what its ends lead to; while they may lead elsewhere, too, beside its unknown waker."""
    wait = replace(wait, kernel=need)
    if any(end.unread for end in need.ends if not end.is_write):
        transit = graph.unknown("value", vertex.key, subject=subject("bytes in transit"))
        return replace(wait, groups=for_any(transit))
    found = [tuple(_at_end(graph, users, vertex, end)) for end in need.ends]
    targets = tuple(dict.fromkeys(one for several in found for one in several if one.vertex != vertex.key))
    leads_to_others = _leads_to_others(graph, vertex, need)
    if need.is_by_thread or not need.ends or not all(found) or not leads_to_others:
        others = targets if leads_to_others else ()
        return replace(wait, groups=for_any(*wait.targets, *others))
    return replace(
        wait,
        groups=for_any(*targets),
        total=len(targets),
        is_linked=not any(end.is_write or end.what in ("file lock", "process") for end in need.ends),
        assumed=(ONLY_THE_ENDS,),
        proven_groups=wait.groups,
    )


def _leads_to_others(graph: GraphBuilder, vertex: Vertex, need: KernelObjects) -> bool:
    """Whether another process has one of the other ends."""
    own = graph.index.pid_of(vertex.worker_id or "") if vertex.child_pid is None else vertex.child_pid
    return any(end.mirrored or any(one.pid != own for one in end.holders) for end in need.ends)


def _at_end(graph: GraphBuilder, users: Users, vertex: Vertex, end: End) -> Iterator[Target]:
    """What can act at an end; nothing if that is not known."""
    if end.what == "process":
        for holder in end.holders:
            yield from _may_end(graph, users, vertex.worker_id or "", holder.pid)
        return
    found = [place for _, place in graph.index.places_of(vertex.worker_id or "", end)]
    for place in found if None not in found else ():
        if place is not None:
            worker_id, child_pid = place
            yield from users.in_process(worker_id) if child_pid is None else users.of_child(worker_id, child_pid)
