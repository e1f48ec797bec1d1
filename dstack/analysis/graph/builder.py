"""The wait-for graph while it is drawn: its vertices, and the shapes of wait that all readers of a sample share.

A claim is made only where it follows from what was seen. Where several things could be what is waited for, the wait is
for any one of them and marked inferred: the truth can only be harder to satisfy, so nothing is called stuck that is
not. Where nothing is known, the target is an ``unknown`` vertex, which counts as able to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.task_assignment import is_blocked_loop
from dstack.analysis.naming import names
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.model import Thread
from dstack.vertex_keys import AnyKey, ChildThreadKey, Id, Key, Unknown, UnknownKey

FEW = 8
"""So many possible targets of waits of which there may be very many are named in each."""
MANY = 32
"""More possible targets than this are shared through a vertex of their own, so that the graph stays small."""


class GraphBuilder:
    """The vertices of one sample by key, waiting or not."""

    def __init__(self, index: SampleIndex) -> None:
        self.index = index
        self.vertices: dict[Key, Vertex] = {}

    def add(self, vertex: Vertex) -> None:
        """Enters a vertex under its key."""
        self.vertices[vertex.key] = vertex

    def unknown(
        self,
        kind: Unknown,
        *ids: Id,
        label: str,
        unobserved: bool = False,
        at_most: Iterable[Key] | None = None,
        worker_id: str | None = None,
    ) -> Target:
        """A target whose waits are not known, so it counts as able to proceed; ``kind`` and ``ids`` identify it.

        ``unobserved`` says that it is one only because it could not be read, and ``at_most`` on what it may depend, if
        that is known; ``worker_id`` where it is, if known.
        """
        key = UnknownKey(kind, ids)
        if key not in self.vertices:
            threads = self._threads_to_look_at(worker_id) if worker_id else []
            vertex = Vertex(
                key=key,
                kind="unknown",
                label=label,
                unobserved=unobserved,
                at_most=None if at_most is None else tuple(dict.fromkeys(at_most)),
                worker_id=worker_id,
                os_thread_id=threads[0].os_thread_id if len(threads) == 1 else None,
            )
            self.add(vertex)
        return Target(vertex=key)

    def _threads_to_look_at(self, worker_id: str) -> list[Thread]:
        """Those that run tasks, or keep an event loop from running them."""
        loops = self.index.threads_with_role(worker_id, "loop")
        blocked = [loop for loop in loops if is_blocked_loop(self.index, loop)]
        return self.index.threads_with_role(worker_id, "task") or blocked

    def other_side(self, call: str, *where: Id) -> Target:
        """Whoever ends a call that was seen, but not who can end it; ``where`` tells two of the same name apart."""
        key = UnknownKey("other side", (call, *where))
        if key not in self.vertices:
            self.add(Vertex(key=key, kind="unknown", label="unknown waker", waker_of=call))
        return Target(vertex=key)

    def child(self, worker_id: str, pid: int, os_thread_id: int | None = None) -> Target:
        """A thread of a worker's child process, the main one by default; able to proceed until its wait is known."""
        key = ChildThreadKey(worker_id, pid, os_thread_id or pid)
        if key not in self.vertices:
            label = names.child_process(pid)
            self.add(Vertex(key=key, kind="unknown", label=label, worker_id=worker_id, child_pid=pid))
        return Target(vertex=key)

    def one_of(self, kind: str, find: Callable[[], Iterable[Target]], reason: str, *whose: Id) -> Wait:
        """A wait for one of several, which are ``whose``: exact if there is but one, shared if there are many.

        They are found anew only as long as they are few.
        """
        key = AnyKey(kind, whose)
        known = self.vertices.get(key)
        if known is not None and known.wait is not None:
            return self.shared(key, known.wait)
        several = tuple(dict.fromkeys(find()))
        groups = (Group(needs=1, targets=several),)
        if len(several) == 1:
            return Wait(kind=kind, groups=groups)
        wait = Wait(kind=kind, groups=groups, inferred=reason, total=len(several))
        return self.shared(key, wait)

    def shared(self, key: AnyKey, wait: Wait) -> Wait:
        """The wait as it is, or if it is for many, through a vertex that all share who wait for the same."""
        count = len(wait.groups[0].targets)
        if count <= MANY:
            return wait
        if key not in self.vertices:
            self.add(Vertex(key=key, kind="task", label=f"any of {count}", wait=wait))
        return msgspec.structs.replace(wait, groups=(Group(needs=1, targets=(Target(vertex=key),)),))


def waits_for(kind: str, target: Target) -> Wait:
    """A wait for one thing."""
    return Wait(kind=kind, groups=(Group(needs=1, targets=(target,)),))
