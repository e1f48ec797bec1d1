"""The waits of a deadlock, as the rules for its fix read them, and lists of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack import words
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe
from dstack.diagnosis import Vertex, WaitKind
from dstack.observed import OTHER_LANGUAGE_ACCESSES


@dataclass(frozen=True)
class DeadlockedWaits:
    """The waits of a deadlock: its cycle in order, and all members."""

    cycle: Sequence[Vertex]
    members: Sequence[Vertex]
    index: SampleIndex

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
        return [vertex for vertex in self.cycle if vertex.wait and vertex.kind == "task"]

    @cached_property
    def resources(self) -> list[str]:
        """The resources that members wait for."""
        return sorted({name for vertex in self.members if vertex.wait for name in vertex.wait.resources})

    @property
    def is_in_python(self) -> bool:
        """Whether all executions are in Python: other languages have no async methods."""
        processes = (self.index.process(vertex.worker_id or "") for vertex in self.callers)
        return not any(process and process.access in OTHER_LANGUAGE_ACCESSES for process in processes)

    @property
    def is_loop_blocked(self) -> bool:
        """Whether a member of the cycle waits for an event loop that another one blocks."""
        keys = {vertex.key for vertex in self.cycle}
        return any(one.wait and (one.wait.kind == "event loop" or one.wait.loop in keys) for one in self.cycle)

    def in_cycle(self, kind: WaitKind) -> list[Vertex]:
        """The members of the cycle with waits of one kind."""
        return [vertex for vertex in self.cycle if vertex.wait and vertex.wait.kind == kind]


def labels_of(vertices: Iterable[Vertex]) -> list[str]:
    """The different names of these."""
    return sorted({describe(vertex) for vertex in vertices})


def any_of(vertices: Iterable[Vertex]) -> str:
    """``Left.ping or Right.ping``."""
    return words.listed(labels_of(vertices), " or ")


def first_label(vertices: Sequence[Vertex]) -> str:
    """The name of the first of these, if there is one."""
    return describe(vertices[0]) if vertices else "the method"
