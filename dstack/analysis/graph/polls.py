"""Waits of loops that only poll, as several readings prove together.

Such a loop is in its poll in all samples. First it waits as its call does, with a timeout; a loop that polls by calls
which succeed waits for something unknown. Once the waits of all others are known, it waits without a timeout for what
it polls, if that is known. If the loop also ends by a flag, it waits for any code that may set that, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.users import Users
from dstack.analysis.index.process_index import OwnTasks, Poll, PolledActors
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import EVENT_LOOP
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.vertex_keys import AnyKey, Key

LOOPS = tuple(place.file for place in EVENT_LOOP.places)


def add_polls(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of the loops that only poll; for those that ask actors, the waits of their users count."""
    polls = graph.index.known.polls
    loops = [vertex for key in polls if (vertex := graph.vertices.get(key)) and vertex.wait is not None]
    asking = {vertex.key for vertex in loops if isinstance(polls[vertex.key].target, PolledActors)}
    for are_asking in (False, True):
        waits = {v.key: _polled(graph, users, v, polls[v.key]) for v in loops if (v.key in asking) is are_asking}
        for key, wait in waits.items():
            graph.vertices[key] = replace(graph.vertices[key], wait=wait)


def _polled(graph: GraphBuilder, users: Users, vertex: Vertex, poll: Poll) -> Wait:
    """The wait of a loop without its timeout, for any of the targets that it polls."""
    assert vertex.wait is not None, "a loop that polls waits"
    place = f"{poll.at.file.rpartition('/')[2]}:{poll.at.line}"
    groups = vertex.wait.groups
    if isinstance(poll.target, OwnTasks):
        tasks = tuple(dict.fromkeys(users.tasks_of(vertex.worker_id or "", besides=vertex.task_id)))
        if not tasks:
            return vertex.wait
        groups = (Group(needs=1, targets=tasks),)
    elif isinstance(poll.target, PolledActors):
        targets = tuple(dict.fromkeys(target for one in poll.target.actors for target in users.of_listed_actor(one)))
        if not _has_other_users(graph, targets):
            return vertex.wait
        groups = (Group(needs=1, targets=targets),)
    elif vertex.wait.kind == "ray.wait":  # which returns the ready refs when it times out
        groups = (Group(needs=1, targets=tuple(dict.fromkeys(vertex.wait.targets))),)
    if poll.has_flag:
        if any(group.needs > 1 for group in groups) or not _is_set_by_threads(graph, vertex):
            return vertex.wait
        setters = tuple(target for target in users.of_process(vertex.worker_id or "") if target.vertex != vertex.key)
        groups = tuple(replace(group, targets=tuple(dict.fromkeys((*group.targets, *setters)))) for group in groups)
    return replace(vertex.wait, groups=groups, polls=place, proven_groups=())


def _is_set_by_threads(graph: GraphBuilder, vertex: Vertex) -> bool:
    """Whether only threads and calls can set a flag in a process: it has no event loop."""
    worker_id = vertex.worker_id or ""
    process = graph.index.process(worker_id)
    if process is None or process.coroutines or vertex.child_pid is not None:
        return False
    return not any(
        frame.file.endswith(LOOPS) for one in process.threads for frame in graph.index.frames_of(worker_id, one)
    )


def _has_other_users(graph: GraphBuilder, users: Iterable[Target]) -> bool:
    """Whether an actor has other users than loops that poll actors and code that waits for these loops to end.

    If not, no call can change what the loops ask for: the actor may check a file or a process.
    """
    ahead = [target.vertex for target in users]
    visited = set(ahead)
    others: list[Vertex] = []
    loops = {key for key, poll in graph.index.known.polls.items() if isinstance(poll.target, PolledActors)}
    while ahead:
        vertex = graph.vertices[ahead.pop()]
        if isinstance(vertex.key, AnyKey):
            new = set(targets_of(vertex)) - visited
            visited |= new
            ahead += new
        elif vertex.key not in loops:
            others.append(vertex)
    return not _wait_for(others, loops)


def _wait_for(several: Sequence[Vertex], loops: set[Key]) -> bool:
    """Whether all of the vertices can only proceed after one of the loops has ended."""
    behind = set(loops)
    left = list(several)
    while left:
        rest = [vertex for vertex in left if not _is_behind(vertex, behind)]
        if len(rest) == len(left):
            return False
        behind.update(vertex.key for vertex in left)
        behind.difference_update(vertex.key for vertex in rest)
        left = rest
    return True


def _is_behind(vertex: Vertex, behind: set[Key]) -> bool:
    if vertex.kind != "execution" or vertex.wait is None or vertex.wait.is_timed:
        return False
    return any(all(target.vertex in behind for target in group.targets) for group in vertex.wait.groups)
