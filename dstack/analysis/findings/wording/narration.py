"""What all kinds of findings are described with: the vertices that take part, as steps; alike ones as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import msgspec

from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.rank_sets import Teams
from dstack.diagnosis import Finding, Group, Since, Step, Target, Vertex
from dstack.vertex_keys import Key

T = TypeVar("T")
SHOWN_NAMES = 3
SHOWN_REST = 5
MAX_COMPARED = 1000


class Narrator:
    """Puts vertices into words; who takes part in several findings is put into words once."""

    def __init__(self, reduced: ReducedGraph) -> None:
        self.reduced = reduced
        self.index = reduced.index
        self.vertices = reduced.vertices
        self.teams = Teams(self.index)
        self._sentences: dict[Key, Step] = {}
        self._names: dict[Key, str] = {}
        self._made: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` gives, made only the first time for a key, which names the function that asks."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])

    def vertices_of(self, keys: Iterable[Key]) -> list[Vertex]:
        """The vertices of these keys."""
        return [self.vertices[key] for key in keys]

    def member(self, vertex: Vertex) -> VertexDetails:
        """Who it is, and where."""
        return details_of(self.index, vertex)

    def name(self, vertex: Vertex) -> str:
        """What it is called where others wait for it."""
        if vertex.key not in self._names:
            self._names[vertex.key] = sentences.name(self.index, vertex)
        return self._names[vertex.key]

    def spot(self, vertex: Vertex) -> str:
        """`` at train.py:12 (rank 3, pid 7, node 10.0.0.1)``, as far as known."""
        who = self.member(vertex)
        rank = f"rank {who.ranks.rank}" if who.ranks.rank is not None else ""
        process = (f"pid {who.pid}", f"node {who.node_ip}") if who.node_ip and vertex.kind == "execution" else ()
        place = ", ".join(part for part in (rank, *process) if part)
        return self.line(vertex) + (f" ({place})" if place else "")

    def line(self, vertex: Vertex) -> str:
        """`` at train.py:12``, as far as known."""
        who = self.member(vertex)
        return f" at {who.file.rpartition('/')[2]}:{who.line}" if who.file else ""

    def step(self, key: Key) -> Step:
        """Who it is, where, what it does and for whom, and for how long now."""
        return _lasting(self._sentence(key), [self.vertices[key]], "")

    def step_towards(self, key: Key, following: Key) -> Step:
        """The same in a cycle, see :meth:`towards`."""
        narrow = self.towards(key, following)
        if narrow is self.vertices[key]:
            return self.step(key)
        return _lasting(sentences.sentence(self.index, self.vertices, narrow), [narrow], "")

    def towards(self, key: Key, following: Key) -> Vertex:
        """The vertex in a cycle: where any of many could end its wait, it waits only for what follows in the cycle."""
        vertex = self.vertices[key]
        is_for_one = len(set(targets_of(vertex))) == 1 and vertex.kind != "lifetime"
        if vertex.wait is None or is_for_one or not self.reduced.is_open_to_many(key):
            return vertex
        groups = (Group(needs=1, targets=(Target(vertex=following),)),)
        wait = msgspec.structs.replace(vertex.wait, groups=groups, needed=1, total=1, inferred=None, loop=None)
        return msgspec.structs.replace(vertex, wait=wait)

    def _sentence(self, key: Key) -> Step:
        if key not in self._sentences:
            self._sentences[key] = sentences.sentence(self.index, self.vertices, self.vertices[key])
        return self._sentences[key]

    def alike(
        self, keys: Sequence[Key], lead: str, step_of: Callable[[Key], Step] | None = None, doing: str = ""
    ) -> Iterator[Step]:
        """The steps of these vertices, those in the same words as one, and no more than a few.

        ``doing`` is what they have done for so long, where the words do not end in that.
        """
        shown = list(alike_steps(keys[:MAX_COMPARED], step_of or self._sentence))[:SHOWN_REST]
        for step, alike in shown:
            count = f" ({len(alike):,} alike)" if len(alike) > 1 else ""
            told = msgspec.structs.replace(step, text=f"{lead}{step.text}{count}")
            yield _lasting(told, self.vertices_of(alike), doing)
        yield from more(len(keys) - sum(len(alike) for _, alike in shown), "like these")

    def behind(self, finding: Finding) -> Iterator[Step]:
        """Who waits behind: executions, since they have lines to look at, and how many others."""
        behind = [key for key in finding.blocked_behind if not self.reduced.is_passed_on(self.vertices[key])]
        executions = [key for key in behind if self.vertices[key].kind == "execution"]
        yield from self.alike(executions, "Blocked behind it: ")
        yield from more(len(behind) - len(executions), "pending behind it")
        yield from self.alike(finding.polled_by, "Polling it: ")


def alike_steps(things: Iterable[T], step_of: Callable[[T], Step]) -> Iterator[tuple[Step, list[T]]]:
    """The step of the first of those that are told in the same words, with all of them."""
    first: dict[Step, Step] = {}
    groups: dict[Step, list[T]] = defaultdict(list)
    for one in things:
        step = step_of(one)
        words = msgspec.structs.replace(step, vertex=None)
        first.setdefault(words, step)
        groups[words].append(one)
    return ((first[words], alike) for words, alike in groups.items())


def _lasting(step: Step, vertices: Sequence[Vertex], doing: str) -> Step:
    """The step with the time for which all of these have waited, if more is known of it than that dstack watched it."""
    since = of_any([vertex.since or Since() for vertex in vertices])
    if since.at_most_s is None:
        return step
    return msgspec.structs.replace(step, text=f"{step.text}, {doing}{names.lasting(since)}")


def more(count: int, where: str) -> Iterator[Step]:
    """``3 more like these``, if there are any."""
    if count > 0:
        yield Step(text=f"{count:,} more {where}")
