"""The wait-for graph under construction: its vertices, and the forms of wait that all modules share.

The graph claims only what follows from the observations. If a wait could have several dependencies, it is for any one
of them and marked as inferred: the real wait can only be harder to satisfy, so no false deadlock is reported. If the
dependency is unknown, the target is an ``unknown`` vertex, which counts as able to proceed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from dstack.analysis.graph.membership import Membership
from dstack.analysis.index.sample_index import SampleIndex, is_blocked_loop, key_of_task
from dstack.call_sites import name_of
from dstack.model.diagnosis import NODES_SETTLE_S, CallName, Group, Target, Vertex, Wait, WaitKind
from dstack.model.vertex_facts import Reason, Subject
from dstack.model.vertex_keys import AnyKey, ChildThreadKey, Id, Key, Unknown, UnknownKey
from dstack.observed.calls import Call
from dstack.observed.processes import Thread

FEW = 8
"""The most targets that each wait names if there may be very many such waits."""
MANY = 32
"""More targets than this are shared through a helper vertex, so that the graph stays small."""

SharedWaitKind = Literal["actor slot", "arguments", "event loop", "order", "thread"]
"""The kinds of wait for one of several targets that other waits may share."""


class GraphBuilder:
    """The vertices of one sample by key, with or without a wait; ``nodes_settle_s`` is that of :class:`Membership`."""

    def __init__(self, index: SampleIndex, nodes_settle_s: float = NODES_SETTLE_S) -> None:
        self.index = index
        self.membership = Membership(index.snapshot, nodes_settle_s)
        self.vertices: dict[Key, Vertex] = {}

    def add(self, vertex: Vertex) -> None:
        """Add a vertex under its key."""
        self.vertices[vertex.key] = vertex

    def unknown(
        self,
        kind: Unknown,
        *ids: Id,
        subject: Subject,
        unobserved: bool = False,
        at_most: Iterable[Key] | None = None,
        worker_id: str | None = None,
    ) -> Target:
        """A target whose waits are unknown, so it counts as able to proceed; ``kind`` and ``ids`` identify it.

        ``unobserved`` says that it is unknown because it could not be read. ``at_most`` are all keys that it may depend
        on, and ``worker_id`` is its worker, if known.
        """
        key = UnknownKey(kind, ids)
        if key not in self.vertices:
            threads = self._threads_to_inspect(worker_id) if worker_id else []
            vertex = Vertex(
                key=key,
                kind="unknown",
                subject=subject,
                unobserved=unobserved,
                at_most=None if at_most is None else tuple(dict.fromkeys(at_most)),
                worker_id=worker_id,
                os_thread_id=threads[0].os_thread_id if len(threads) == 1 else None,
            )
            self.add(vertex)
        return Target(vertex=key)

    def _threads_to_inspect(self, worker_id: str) -> list[Thread]:
        """The threads that run tasks, or block an event loop that runs them."""
        loops = self.index.threads_with_role(worker_id, "loop")
        blocked = [loop for loop in loops if is_blocked_loop(self.index, worker_id, loop)]
        return self.index.threads_with_role(worker_id, "task") or blocked

    def task(self, task_id: str) -> Target:
        """A task, by the thread or coroutine that runs it if that is known."""
        return Target(vertex=key_of_task(self.index, task_id))

    def unknown_waker(self, call: CallName, *where: Id) -> Target:
        """The unknown waker of a call; ``where`` distinguishes two calls of the same name."""
        key = UnknownKey("other side", (call.site, call.text, *where))
        if key not in self.vertices:
            self.add(Vertex(key=key, kind="unknown", subject=Subject(what="waker"), waker_of=call))
        return Target(vertex=key)

    def unknown_waker_in(self, call: CallName, worker_id: str) -> Target:
        """The unknown waker of a call on nothing that has an identity: one for actors of the same class in a job."""
        worker, actor = self.index.workers.get(worker_id), self.index.actor_of_worker(worker_id)
        return self.unknown_waker(call, worker.job_id if worker else None, actor.class_name if actor else None)

    def child(self, worker_id: str, pid: int, os_thread_id: int | None = None) -> Target:
        """A thread of a worker's child process, the main one by default; able to proceed until its wait is known."""
        key = ChildThreadKey(worker_id, pid, os_thread_id or pid)
        if key not in self.vertices:
            subject = Subject(what="child process", of=(pid,))
            self.add(Vertex(key=key, kind="unknown", subject=subject, worker_id=worker_id, child_pid=pid))
        return Target(vertex=key)

    def one_of(self, kind: SharedWaitKind, find: Callable[[], Iterable[Target]], reason: Reason, *ids: Id) -> Wait:
        """A wait for one of several targets: exact if there is only one, shared if there are many.

        ``kind`` and ``ids`` identify the targets, which ``find`` returns. It is not called again if they are many.
        """
        key = AnyKey(kind, ids)
        known = self.vertices.get(key)
        if known is not None and known.wait is not None:
            return self.shared(key, known.wait)
        targets = tuple(dict.fromkeys(find()))
        return self.shared(key, waits_for(kind, *targets, inferred=reason if len(targets) != 1 else None))

    def shared(self, key: AnyKey, wait: Wait, *, most: int = MANY, room: Subject | None = None) -> Wait:
        """The wait itself, or if it has more than ``most`` targets, one through a helper that all such waits share.

        The helper is ``room`` for a request, if that is given.
        """
        count = len(wait.groups[0].targets)
        if count <= most:
            return wait
        if key not in self.vertices:
            what = room or Subject(what="any of", of=(count,))
            self.add(Vertex(key=key, kind="room" if room else "task", subject=what, wait=wait))
        return msgspec.structs.replace(wait, groups=for_any(Target(vertex=key)))


def for_any(*targets: Target) -> tuple[Group, ...]:
    """The groups of a wait for any of the targets."""
    return (Group(needs=1, targets=targets),)


def waits_for(
    kind: WaitKind,
    *targets: Target,
    inferred: Reason | None = None,
    timeout_s: float | None = None,
    called: CallName | None = None,
) -> Wait:
    """A wait for any of the targets."""
    return Wait(
        kind=kind, groups=for_any(*targets), inferred=inferred, timeout_s=timeout_s, total=len(targets), called=called
    )


def call_beyond_kind(call: Call) -> CallName | None:
    """The name of a call, None if its kind says as much."""
    return CallName.of(call) if name_of(call) else None
