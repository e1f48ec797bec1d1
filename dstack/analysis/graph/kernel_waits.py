"""Waits in the kernel: for a process at the other end of a pipe or socket, the holder of a file lock, or a child.

A wait is known if all its ends lead to processes that were read. Any thread of these may end it, and to be safe, all
code that can proceed in them or call into them. Whatever else may end it makes its waker unknown: a listening socket, a
signal, a terminal, a process outside of the jobs, a native thread of the waiter's own process. So does a pipe of which
only the waiter's own process has the other end: which of its code would write is not known. A coroutine may be ended by
what its event loop watches, or by other code of its process.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.users import Users
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_facts import assumption, subject
from dstack.observed.calls import Children, End, KernelObjects, ProcessObject

ONLY_THE_ENDS = assumption("only the ends")


def add_kernel_waits(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of executions in system calls, and for child processes."""
    for vertex in [vertex for vertex in graph.vertices.values() if vertex.kind == "execution" and vertex.wait]:
        call = graph.index.call_of_vertex(vertex)
        if call is None or vertex.wait is None or vertex.wait.polls:
            continue
        match call.need:
            case KernelObjects() as need:
                graph.add(replace(vertex, wait=_completed(graph, users, vertex, vertex.wait, need)))
            case ProcessObject(ends=ends) if ends:
                need = KernelObjects(system_call="epoll_wait", ends=ends, is_by_thread=True)
                graph.add(replace(vertex, wait=_completed(graph, users, vertex, vertex.wait, need)))
            case Children() as need:
                graph.add(replace(vertex, wait=_for_children(graph, users, vertex, vertex.wait, need)))


def _for_children(graph: GraphBuilder, users: Users, vertex: Vertex, wait: Wait, need: Children) -> Wait:
    """The wait for any thread of the children: each of them may end its process, as a watchdog does."""
    found = (target for pid in need.pids for target in _may_end(graph, users, vertex.worker_id or "", pid))
    targets = tuple(dict.fromkeys(found))
    return replace(wait, groups=(Group(needs=1, targets=targets),), total=len(targets)) if targets else wait


def _may_end(graph: GraphBuilder, users: Users, worker_id: str, pid: int) -> Iterator[Target]:
    """What may end a child process: its main thread, or any other that can proceed."""
    yield graph.child(worker_id, pid)
    yield from users.of_child(worker_id, pid) if graph.index.child(worker_id, pid) else ()


def _completed(graph: GraphBuilder, users: Users, vertex: Vertex, wait: Wait, need: KernelObjects) -> Wait:
    """The wait for what its ends lead to; while they may lead elsewhere, too, beside its unknown waker."""
    wait = replace(wait, kernel=need)
    if any(end.unread for end in need.ends if not end.is_write):
        return replace(wait, groups=(Group(needs=1, targets=(_in_transit(graph, vertex),)),))
    found = [tuple(_targets_of(graph, users, vertex, end)) for end in need.ends]
    targets = tuple(dict.fromkeys(one for several in found for one in several if one.vertex != vertex.key))
    leads_to_others = _leads_to_others(graph, vertex, need)
    if need.is_by_thread or not need.ends or not all(found) or not leads_to_others:
        others = targets if leads_to_others else ()
        return replace(wait, groups=(Group(needs=1, targets=(*wait.targets, *others)),))
    return replace(
        wait,
        groups=(Group(needs=1, targets=targets),),
        total=len(targets),
        is_linked=not any(end.is_write or end.what in ("file lock", "process") for end in need.ends),
        assumed=(ONLY_THE_ENDS,),
        proven_groups=wait.groups,
    )


def _leads_to_others(graph: GraphBuilder, vertex: Vertex, need: KernelObjects) -> bool:
    """Whether another process has one of the other ends."""
    own = graph.index.pid_of(vertex.worker_id or "") if vertex.child_pid is None else vertex.child_pid
    return any(end.mirrored or any(one.pid != own for one in end.holders) for end in need.ends)


def _targets_of(graph: GraphBuilder, users: Users, vertex: Vertex, end: End) -> Iterator[Target]:
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


def _in_transit(graph: GraphBuilder, vertex: Vertex) -> Target:
    """Bytes that are on their way to the waiter, which will proceed by them."""
    return graph.unknown("value", vertex.key, subject=subject("bytes in transit"))
