"""Waits at the ends of vLLM's message queues: a reader waits for the writer, the writer for readers that are late.

The processes that have the memory of a queue open are its ends. Which one each of them is, its own memory tells; one
that does not tell may be any. An end that no process has is gone only if something else has ended, too: vLLM opens all
ends before the first message, but other code may not. A reader may just wait for work: it does unless its writer is
itself blocked, in a wait that no idle service has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, for_any
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import Place, has_one_slot
from dstack.call_sites import kind_of
from dstack.model.diagnosis import CallName, Group, Target, Vertex, Wait
from dstack.model.vertex_facts import never, subject
from dstack.model.vertex_keys import AnyKey
from dstack.observed.calls import REF_CALLS, Call, ChannelCall, End, GroupCall, Holder, QueueCall
from dstack.observed.processes import QueueEnd

BLOCKING = (GroupCall, ChannelCall, QueueCall)
BLOCKING_KINDS = (*REF_CALLS, "lock", "thread.join")
"""Calls in which no service is idle."""


@dataclass(frozen=True, slots=True)
class _Opener:
    """A process that has the queue open, and the ends of it that its memory is known to have."""

    holder: Holder
    place: Place | None
    ends: tuple[QueueEnd, ...]


def add_queue_waits(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of executions that are at an end of a message queue."""
    for vertex in [vertex for vertex in graph.vertices.values() if vertex.kind == "execution" and vertex.wait]:
        call = graph.index.call_of_vertex(vertex)
        if call is not None and isinstance(call.need, QueueCall):
            queue = _Queue(graph, users, vertex, call.need)
            graph.add(replace(vertex, wait=queue.wait(CallName.of(call), call.timeout_s)))


class _Queue:
    """The queue of one wait, with the processes that have it open."""

    def __init__(self, graph: GraphBuilder, users: Users, vertex: Vertex, need: QueueCall) -> None:
        self._graph = graph
        self._users = users
        self._need = need
        self._worker_id = vertex.worker_id or ""
        self._own: Place = (self._worker_id, vertex.child_pid)
        self._openers = list(self._find_openers())

    def wait(self, called: CallName, timeout_s: float | None) -> Wait:
        """The wait for the writer, or for each of the readers that are late."""
        need = self._need
        waker = self._graph.unknown_waker(called, self._worker_id, need.name)
        if need.is_ready:
            message = subject("bytes in transit")
            groups = for_any(self._graph.unknown("value", self._own, need.name, subject=message))
        elif need.rank is None:
            groups = tuple(Group(needs=1, targets=self._targets(rank, waker)) for rank in need.late)
        else:
            targets = self._targets(None, waker)
            groups = for_any(*targets, *(() if self._is_writer_blocked(targets) else (waker,)))
        return Wait(
            kind="queue write" if need.rank is None else "queue read",
            groups=groups,
            total=len(groups),
            needed=len(groups),
            timeout_s=timeout_s,
            called=called,
            of_queue=need,
            fails_after_s=need.fails_after_s,
        )

    def _find_openers(self) -> Iterator[_Opener]:
        index = self._graph.index
        for holder, place in index.places_of(self._worker_id, End(what="file", holders=self._need.holders)):
            process = None
            if place is not None:
                process = index.process(place[0]) if place[1] is None else index.child(place[0], place[1])
            ends = process.queue_ends if process else ()
            own = (QueueEnd(name=self._need.name, rank=self._need.rank),) if place == self._own else ()
            yield _Opener(holder, place, (*own, *(end for end in ends if end.name == self._need.name)))

    def _having(self, rank: int | None) -> list[_Opener]:
        """The processes that have an end, or if none is known to, those that may have it."""
        wanted = QueueEnd(name=self._need.name, rank=rank)
        known = [one for one in self._openers if wanted in one.ends]
        return known or [one for one in self._openers if not one.ends]

    def _targets(self, rank: int | None, waker: Target) -> tuple[Target, ...]:
        """What can proceed in the process that has an end; ``waker`` if it is unknown whether one has it."""
        having = self._having(rank)
        if not having:
            return (self._gone(rank),) if self._has_end_of_process(rank) else (waker,)
        return tuple(dict.fromkeys(target for one in having for target in self._code(one)))

    def _is_writer_blocked(self, targets: tuple[Target, ...]) -> bool:
        """Whether the writer is gone, runs, or waits as no idle service does."""
        vertices = [vertex for target in targets if (vertex := self._graph.vertices.get(target.vertex))]
        if any(one.never or (one.kind == "execution" and one.wait is None) for one in vertices):
            return True
        calls = [call for one in self._having(None) for call in self._calls(one)]
        return any(isinstance(call.need, BLOCKING) or kind_of(call) in BLOCKING_KINDS for call in calls)

    def _calls(self, opener: _Opener) -> Iterator[Call]:
        if opener.place is None:
            return iter(())
        worker_id, child_pid = opener.place
        child = self._graph.index.child(worker_id, child_pid) if child_pid is not None else None
        return child.calls() if child else self._graph.index.calls_in(worker_id)

    def _has_end_of_process(self, rank: int | None) -> bool:
        """Whether the end of a process shows: of the writer by its memory, of any by a dead actor or child.

        An actor that starts again may open its end again.
        """
        index = self._graph.index
        if rank is None and self._need.is_unlinked:
            return True
        worker = index.workers.get(self._worker_id)
        states = {one.state for one in index.actors.values() if worker is None or one.job_id == worker.job_id}
        processes = [index.process(one.place[0]) for one in self._openers if one.place]
        has_ended = "DEAD" in states or any(one.ended_children for one in processes if one)
        return has_ended and states <= {"DEAD", "ALIVE"}

    def _code(self, opener: _Opener) -> Iterator[Target]:
        """What can proceed in a process: nothing can be called into an actor while its only slot is taken."""
        if opener.place is None:
            process = subject("process in no list")
            pid = opener.holder.pid
            yield self._graph.unknown("process", self._worker_id, pid, subject=process, unobserved=True)
            return
        worker_id, child_pid = opener.place
        if child_pid is not None:
            users = self._users.of_child(worker_id, child_pid)
        elif has_one_slot(self._graph.index, worker_id):
            users = self._users.inside(worker_id)
        else:
            users = self._users.in_process(worker_id)
        several = list(users)
        yield from list(self._users.alternatives.without_idle(several)) or several

    def _gone(self, rank: int | None) -> Target:
        """An end of the queue that no process has: it neither reads nor writes any more."""
        name = self._need.name
        what = subject("queue writer", name) if rank is None else subject("queue reader", rank, name)
        key = AnyKey("left", ("queue", name, rank))
        self._graph.add(Vertex(key=key, kind="task", subject=what, never=never("queue end"), is_confirmed=True))
        return Target(vertex=key)
