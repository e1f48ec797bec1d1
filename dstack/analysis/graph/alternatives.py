"""Helper vertices that wait for any of several targets, such as all code that can use an actor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from dstack.analysis.graph.builder import FEW, GraphBuilder, waits_for
from dstack.diagnosis import Group, Target, Vertex, Wait
from dstack.vertex_facts import Subject, assumption, reason
from dstack.vertex_keys import AnyKey, Helper, Key

IDLE = assumption("idle library")


class Alternatives:
    """Adds helpers of kind ``lifetime`` to a graph, each once; their targets may be helpers that lead back to them.

    ``idle`` are the keys of library code that is assumed to stay idle: helpers do not wait for it.
    """

    def __init__(self, graph: GraphBuilder) -> None:
        self.idle: set[Key] = set()
        self._graph = graph
        self._unfinished: list[tuple[Vertex, Callable[[], Iterable[Target]]]] = []
        self._is_building = False
        self._found: dict[Key, Sequence[Target]] = {}

    def without_idle(self, targets: Iterable[Target]) -> Iterator[Target]:
        """The targets without library code that is assumed to stay idle."""
        return (target for target in targets if target.vertex not in self.idle)

    def any_of(self, kind: Helper, owner: str, subject: Subject, find: Callable[[], Iterable[Target]]) -> Target:
        """The helper for any of the targets that ``find`` returns; ``owner`` is the id of what they can use."""
        return self.add(Vertex(key=AnyKey(kind, (owner,)), kind="lifetime", subject=subject), find)

    def few(self, kind: Helper, owner: str, subject: Subject, find: Callable[[], Iterable[Target]]) -> Sequence[Target]:
        """The targets that ``find`` returns, found once; if they are many, a helper for any of them."""
        key = AnyKey(kind, (owner,))
        if key not in self._found:
            found = tuple(dict.fromkeys(find()))
            self._found[key] = (self.any_of(kind, owner, subject, lambda: found),) if len(found) > FEW else found
        return self._found[key]

    def add(self, vertex: Vertex, find: Callable[[], Iterable[Target]]) -> Target:
        """A helper as a target; its wait is built now, or after that of the helper that is being built."""
        if vertex.key not in self._graph.vertices:
            self._graph.add(vertex)
            self._unfinished.append((vertex, find))
            self._build()
        return Target(vertex=vertex.key)

    def _build(self) -> None:
        if self._is_building:
            return
        self._is_building = True
        while self._unfinished:
            vertex, find = self._unfinished.pop()
            targets = tuple(dict.fromkeys(find())) or (
                self._graph.unknown("ender", vertex.key, subject=Subject(what="unread process")),
            )
            self._graph.add(msgspec.structs.replace(vertex, wait=self._wait_for(targets)))
        self._is_building = False

    def _wait_for(self, targets: tuple[Target, ...]) -> Wait:
        """The wait for any of the targets, without idle library code if there are others."""
        active = tuple(self.without_idle(targets))
        if not active or len(active) == len(targets):
            return _wait_for_any(targets)
        proven = Group(needs=1, targets=targets)
        return msgspec.structs.replace(_wait_for_any(active), assumed=(IDLE,), proven_groups=(proven,))


def _wait_for_any(targets: tuple[Target, ...]) -> Wait:
    return waits_for("lifetime", *targets, inferred=reason("any ender") if len(targets) > 1 else None)
