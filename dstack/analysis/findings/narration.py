"""How vertices are put into words: as names, places and steps, similar ones as one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.peers import RankSets
from dstack.model.diagnosis import Group, Since, Step, Target, Vertex
from dstack.model.vertex_keys import Key

T = TypeVar("T")
# How much a finding shows; a list without a limit of its own has words.SHOWN items.
SHOWN_CYCLE = 24
"""Sentences about a cycle, and about executions that have not entered its calls."""
SHOWN_CALLS = 8
"""Sentences about calls on process groups."""
SHOWN_STEPS = 5
"""Different sentences about similar vertices."""
SHOWN_PARTS = 4
"""Parts of a headline, and remarks on a diagram."""
SHOWN_OTHERS = 2
"""Remarks on a diagram about other final blockers, or other members of a deadlock."""
SHOWN_BEHIND = 1
"""Names of what is blocked behind a diagram."""
SHOWN_ERROR = 80
"""Characters of an error in a headline or diagram."""
MAX_COMPARED = 1000
"""The most vertices that are compared with each other."""


class Narrator:
    """Puts the vertices of one reduced graph into words; caches them, since findings share vertices."""

    def __init__(self, reduced: ReducedGraph) -> None:
        self.reduced = reduced
        self.index = reduced.index
        self.vertices = reduced.vertices
        self.rank_sets = RankSets(self.index)
        self._sentences: dict[Key, Step] = {}
        self._names: dict[Key, str] = {}

    def details(self, vertex: Vertex) -> VertexDetails:
        """Where a vertex runs, and at which line."""
        return details_of(self.index, vertex)

    def name(self, vertex: Vertex) -> str:
        """The name of a vertex as the target of a wait."""
        if vertex.key not in self._names:
            self._names[vertex.key] = sentences.name(self.index, vertex)
        return self._names[vertex.key]

    def line(self, vertex: Vertex) -> str:
        """`` at train.py:12``; empty if not known."""
        details = self.details(vertex)
        return f" at {details.file.rpartition('/')[2]}:{details.line}" if details.file else ""

    def step(self, vertex: Vertex) -> Step:
        """The sentence about a vertex: its place, what it waits for, and for how long."""
        return _with_duration(self._sentence(vertex), [vertex], "")

    def in_cycle(self, vertex: Vertex, following: Key) -> Vertex:
        """A vertex of a cycle; if any of many could end its wait, it waits only for the ``following`` one."""
        is_for_one = len(set(targets_of(vertex))) == 1 and vertex.kind != "lifetime"
        if vertex.wait is None or is_for_one or not self.reduced.is_open_to_many(vertex.key):
            return vertex
        groups = (Group(needs=1, targets=(Target(vertex=following),)),)
        return replace(vertex, wait=replace(vertex.wait, groups=groups, needed=1, total=1, inferred=None, loop=None))

    def similar_steps(
        self, vertices: Sequence[Vertex], lead: str, step_of: Callable[[Vertex], Step] | None = None, doing: str = ""
    ) -> Iterator[Step]:
        """The steps of these vertices, at most a few; those in the same words are one step.

        ``doing`` precedes the duration where the sentence itself does not end in what has lasted so long.
        """
        shown = list(group_by_step(vertices[:MAX_COMPARED], step_of or self._sentence))[:SHOWN_STEPS]
        for step, similar in shown:
            text = f"{lead}{step.text}{words.alike(len(similar))}"
            yield _with_duration(replace(step, text=text), similar, doing)
        yield from more(len(vertices) - sum(len(similar) for _, similar in shown), "like these")

    def _sentence(self, vertex: Vertex) -> Step:
        if vertex is not self.vertices[vertex.key]:  # another wait of it, as in a cycle
            return sentences.sentence(self.index, self.vertices, vertex)
        if vertex.key not in self._sentences:
            self._sentences[vertex.key] = sentences.sentence(self.index, self.vertices, vertex)
        return self._sentences[vertex.key]


def group_by_step(things: Iterable[T], step_of: Callable[[T], Step]) -> Iterator[tuple[Step, list[T]]]:
    """Each different step, which is that of the first thing with it, and all things with these words."""
    first: dict[Step, Step] = {}
    groups: dict[Step, list[T]] = defaultdict(list)
    for thing in things:
        step = step_of(thing)
        without_vertex = replace(step, vertex=None)
        first.setdefault(without_vertex, step)
        groups[without_vertex].append(thing)
    return ((first[key], similar) for key, similar in groups.items())


def more(count: int, what: str) -> Iterator[Step]:
    """``3 more like these``, if there are any."""
    if count > 0:
        yield Step(text=f"{count:,} more {what}")


def _with_duration(step: Step, vertices: Sequence[Vertex], doing: str) -> Step:
    """The step with how long all of these have waited, unless only the time between the samples is known."""
    since = of_any([vertex.since or Since() for vertex in vertices])
    if since.at_most_s is None:
        return step
    return replace(step, text=f"{step.text}, {doing}{names.lasting(since)}")
