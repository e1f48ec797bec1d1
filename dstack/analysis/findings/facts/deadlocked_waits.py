"""The waits of a deadlock: its cycle and members, as its words, its diagram and the rules for its fix read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.call_sites import BARRIER
from dstack.model.diagnosis import Vertex, WaitKind
from dstack.model.vertex_keys import Key
from dstack.observed.processes import OTHER_LANGUAGE_ACCESSES
from dstack.words import grouped

QUEUES: tuple[WaitKind, ...] = ("actor slot", "event loop")
"""The waits of a call that has not begun."""


@dataclass(frozen=True, eq=False)
class DeadlockedWaits:
    """The waits of the draft of a deadlock; ``members`` are all vertices that take part, with helpers."""

    draft: Draft
    members: list[Vertex]

    @cached_property
    def cycle(self) -> list[Vertex]:
        """The cycle in order, with helpers."""
        return self.draft.reduced.vertices_of(self.draft.cycle)

    @cached_property
    def shown_cycle(self) -> list[Vertex]:
        """The cycle without helpers."""
        return [vertex for vertex in self.cycle if not self.draft.reduced.is_helper(vertex.key)]

    @cached_property
    def following(self) -> dict[Key, Key]:
        """The vertex after each in the cycle that is shown."""
        keys = [vertex.key for vertex in self.shown_cycle]
        return dict(zip(keys, (*keys[1:], *keys[:1]), strict=True))

    def alike(self, vertex: Vertex) -> list[Vertex]:
        """A vertex of the cycle, and the members that do the same: of its name, process, line and call.

        Only where any of many could end the waits, so that any of these could be in the cycle instead.
        """
        return [vertex, *self._alike.get(vertex.key, ())]

    @cached_property
    def _alike(self) -> dict[Key, list[Vertex]]:
        if not any(self.draft.reduced.is_open_to_many(one.key) for one in self.shown_cycle):
            return {}
        labels = {describe(one) for one in self.shown_cycle}
        others = set(self.draft.cycle)
        candidates = (one for one in self.members if one.key not in others and describe(one) in labels)
        found = grouped((self._likeness(one), one) for one in candidates)
        return {one.key: found.pop(self._likeness(one), []) for one in self.shown_cycle}

    def _likeness(self, vertex: Vertex) -> object:
        details = details_of(self.draft.reduced.index, vertex)
        call = vertex.wait and vertex.wait.call
        return vertex.kind, describe(vertex), details.actor_id, details.pid, details.file, details.line, call

    @cached_property
    def not_at_barrier(self) -> list[Vertex]:
        """The members in user code that are not at a barrier of the cycle, nor wait for a member that is."""
        if not any(map(_is_at_barrier, self.cycle)):
            return []
        members = [vertex for vertex in self.members if vertex.kind == "execution" and vertex.wait]
        there = {vertex.key for vertex in members if _is_at_barrier(vertex)}
        arrived = there | {vertex.key for vertex in members if not there.isdisjoint(targets_of(vertex))}
        missing = [one for one in members if one.key not in arrived and arrived.isdisjoint(targets_of(one))]
        return [vertex for vertex in missing if self.draft.reduced.is_in_users_code(vertex.key)]

    @cached_property
    def kinds(self) -> set[WaitKind]:
        """The kinds of the members' waits."""
        return {vertex.wait.kind for vertex in self.members if vertex.wait}

    @cached_property
    def callers(self) -> list[Vertex]:
        """The executions of the cycle."""
        return [vertex for vertex in self.cycle if vertex.kind == "execution"]

    @cached_property
    def pending(self) -> list[Vertex]:
        """The tasks and calls of the cycle that have not begun."""
        return [vertex for vertex in self.cycle if vertex.wait and vertex.kind == "task" and vertex.is_counted]

    @property
    def is_in_python(self) -> bool:
        """Whether all executions are in Python: other languages have no async methods."""
        processes = (self.draft.reduced.index.process(vertex.worker_id or "") for vertex in self.callers)
        return not any(process and process.access in OTHER_LANGUAGE_ACCESSES for process in processes)

    @property
    def is_loop_blocked(self) -> bool:
        """Whether a member of the cycle waits for an event loop that another one blocks."""
        keys = {vertex.key for vertex in self.cycle}
        return any(one.wait and (one.wait.kind == "event loop" or one.wait.loop in keys) for one in self.cycle)

    def in_cycle(self, kind: WaitKind) -> list[Vertex]:
        """The members of the cycle with waits of one kind."""
        return [vertex for vertex in self.cycle if vertex.wait and vertex.wait.kind == kind]


def _is_at_barrier(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.site is BARRIER


def has_not_begun(vertex: Vertex) -> bool:
    """Whether it is a call or request that has not begun because another one occupies its slot."""
    if vertex.wait is None:
        return False
    return (vertex.kind == "task" and vertex.wait.kind in QUEUES) or (
        vertex.wait.kind == "Serve slot" and bool(vertex.wait.limit)
    )
