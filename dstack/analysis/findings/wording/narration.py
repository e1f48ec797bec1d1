"""How vertices are put into words: as names, places and steps, similar ones as one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.failures import Failures, identity
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.rank_sets import RankSets
from dstack.diagnosis import FailedBefore, Group, Since, Step, Target, Vertex
from dstack.vertex_keys import Key

T = TypeVar("T")
SHOWN_STEPS = 5
MAX_COMPARED = 1000


class Narrator:
    """Puts the vertices of one reduced graph into words; caches them, since findings share vertices.

    ``reported`` are the failures that are findings of their own.
    """

    def __init__(self, reduced: ReducedGraph, reported: Iterable[FailedBefore] = ()) -> None:
        self.reduced = reduced
        self.index = reduced.index
        self.vertices = reduced.vertices
        self.rank_sets = RankSets(self.index)
        self._failures = Failures(reduced)
        self._reported = {identity(failed) for failed in reported}
        self._sentences: dict[Key, Step] = {}
        self._names: dict[Key, str] = {}
        self._cache: dict[object, object] = {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """The cached result of ``make`` for a key, which includes the calling function."""
        if key not in self._cache:
            self._cache[key] = make()
        return cast(T, self._cache[key])

    def failed_before(self, draft: Draft) -> tuple[FailedBefore, ...]:
        """The failures that the waits of a draft may depend on, or its subject."""
        if draft.failure is not None:
            return (draft.failure,)
        return self.once((Failures.beside, draft), lambda: self._failures.beside(draft))

    def unreported_failures(self, draft: Draft) -> list[FailedBefore]:
        """The same without those that are findings of their own."""
        return [failed for failed in self.failed_before(draft) if identity(failed) not in self._reported]

    def vertices_of(self, keys: Iterable[Key]) -> list[Vertex]:
        """The vertices of these keys."""
        return [self.vertices[key] for key in keys]

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

    def line_and_process(self, vertex: Vertex) -> str:
        """`` at train.py:12 (rank 3, pid 7, node 10.0.0.1)``, as far as known."""
        details = self.details(vertex)
        is_located = bool(details.node_ip) and vertex.kind == "execution"
        parts = (
            f"rank {details.ranks.rank}" if details.ranks.rank is not None else "",
            f"pid {details.pid}, node {details.node_ip}" if is_located else "",
        )
        place = ", ".join(filter(None, parts))
        return self.line(vertex) + (f" ({place})" if place else "")

    def step(self, key: Key) -> Step:
        """The sentence about a vertex: its place, what it waits for, and for how long."""
        return _with_duration(self._sentence(key), [self.vertices[key]], "")

    def step_in_cycle(self, key: Key, following: Key) -> Step:
        """The same, with the wait of :meth:`in_cycle`."""
        vertex = self.in_cycle(key, following)
        if vertex is self.vertices[key]:
            return self.step(key)
        return _with_duration(sentences.sentence(self.index, self.vertices, vertex), [vertex], "")

    def in_cycle(self, key: Key, following: Key) -> Vertex:
        """A vertex of a cycle; if any of many could end its wait, it waits only for the ``following`` one."""
        vertex = self.vertices[key]
        is_for_one = len(set(targets_of(vertex))) == 1 and vertex.kind != "lifetime"
        if vertex.wait is None or is_for_one or not self.reduced.is_open_to_many(key):
            return vertex
        groups = (Group(needs=1, targets=(Target(vertex=following),)),)
        return replace(vertex, wait=replace(vertex.wait, groups=groups, needed=1, total=1, inferred=None, loop=None))

    def similar_steps(
        self, keys: Sequence[Key], lead: str, step_of: Callable[[Key], Step] | None = None, doing: str = ""
    ) -> Iterator[Step]:
        """The steps of these vertices, at most a few; those in the same words are one step.

        ``doing`` precedes the duration where the sentence itself does not end in what has lasted so long.
        """
        shown = list(group_by_step(keys[:MAX_COMPARED], step_of or self._sentence))[:SHOWN_STEPS]
        for step, similar in shown:
            text = f"{lead}{step.text}{words.alike(len(similar))}"
            yield _with_duration(replace(step, text=text), self.vertices_of(similar), doing)
        yield from more(len(keys) - sum(len(similar) for _, similar in shown), "like these")

    def steps_behind(self, blocked_behind: Iterable[Key], polled_by: Sequence[Key]) -> Iterator[Step]:
        """What is blocked behind a finding: executions and the number of pending calls; then its pollers."""
        behind = [key for key in blocked_behind if not self.reduced.is_passed_on(self.vertices[key])]
        executions = [key for key in behind if self.vertices[key].kind == "execution"]
        yield from self.similar_steps(executions, "Blocked behind it: ")
        yield from more(len(behind) - len(executions), "pending behind it")
        yield from self.similar_steps(polled_by, "Polling it: ")

    def _sentence(self, key: Key) -> Step:
        if key not in self._sentences:
            self._sentences[key] = sentences.sentence(self.index, self.vertices, self.vertices[key])
        return self._sentences[key]


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
