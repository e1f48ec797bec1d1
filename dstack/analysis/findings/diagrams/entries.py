"""The entries of a diagram: their places, what they wait for by number, and the folding of many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.kinds.unsatisfiable import submission
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.index import ray_libraries
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.descriptions import describe, limit_in_words
from dstack.analysis.naming.vertex_details import VertexDetails
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Entry, Step, Vertex, WaitKind
from dstack.vertex_keys import Key, UnknownKey
from dstack.words import SHOWN, shortly

MAX_PASSED_ON = 4
SETUP = "installation of its runtime environment"
QUEUES: tuple[WaitKind, ...] = ("actor slot", "event loop")
"""The waits of a call that has not begun; its caller's entry mentions them."""


Title: TypeAlias = tuple[str, "str | None", "int | None"]
"""The name, file and line by which entries are alike."""


@dataclass(frozen=True, slots=True)
class Part:
    """The similar vertices that become one entry; ``name`` and ``does`` replace those of the first vertex."""

    vertices: Sequence[Vertex]
    name: str = ""
    does: str = ""

    @property
    def first(self) -> Vertex:
        """The vertex whose place and line are shown."""
        return self.vertices[0]


class Entries:
    """Makes the entries of one finding from its parts; in a cycle each waits for its ``following`` vertex."""

    def __init__(self, draft: Draft, narrator: Narrator, parts: Sequence[Part], following: Mapping[Key, Key]) -> None:
        self._narrator = narrator
        self._parts = parts
        self._following = following
        self.numbers = {vertex.key: number for number, part in enumerate(parts, 1) for vertex in part.vertices}
        self._own = {*self.numbers, *draft.waits, *draft.behind}

    def rows(self) -> Iterator[Entry | Step]:
        """The entries: the first, the last, and a line for each between; of many only one line, and the others' names.

        Entries of thousands of folded parts are not made.
        """
        parts = list(enumerate(self._parts, 1))
        if len(parts) <= 2:
            yield from (self._entry(number, part) for number, part in parts)
            return
        first, *between, last = parts
        yield self._entry(*first)
        shown = between if len(between) <= SHOWN else between[:1]
        yield from (replace(self._entry(number, part), is_brief=True) for number, part in shown)
        if len(shown) < len(between):
            yield _folded(between[0][0], [self._title(part) for _, part in between], len(shown))
        yield self._entry(*last)

    def _title(self, part: Part) -> Title:
        """The name, file and line of the part's entry."""
        vertex = part.first
        if _is_setup(vertex):  # its label is long, and in the headline
            return SETUP, None, None
        if vertex.kind == "lifetime":
            return describe(vertex), None, None
        details = self._narrator.details(vertex)
        return part.name or details.execution, details.file, details.line

    def _entry(self, number: int, part: Part) -> Entry:
        vertex = part.first
        name, file, line = self._title(part)
        if _is_setup(vertex):
            return Entry(number=number, name=name, vertex=vertex.key)
        details = self._narrator.details(vertex)
        if vertex.kind == "lifetime":
            return Entry(number=number, name=name, vertex=vertex.key, does=self._does(vertex, details))
        return Entry(
            number=number,
            name=name,
            vertex=vertex.key,
            place=() if vertex.never and not vertex.child_pid else _place(details, is_named=bool(part.name)),
            file=file,
            line=line,
            source=details.source,
            does=part.does or self._does(vertex, details),
            also=self._also(vertex),
        )

    def _does(self, vertex: Vertex, details: VertexDetails) -> str:
        if following := self._following.get(vertex.key):
            vertex = self._narrator.in_cycle(vertex.key, following)
        if vertex.wait is not None and vertex.wait.polls:
            vertex = replace(vertex, wait=replace(vertex.wait, polls=""))  # its line is the entry's, or one of Ray's
        return sentences.predicate(self._narrator.index, self._narrator.vertices, vertex, details, self._name)

    def _name(self, vertex: Vertex) -> str:
        """A target with its number: ``Kitchen.cook (running as 2)``, ``Cashier.is_paid (queued behind 1)``."""
        if _is_setup(vertex):
            return SETUP
        if vertex.key not in self._own:
            return self._narrator.name(vertex)
        shown = self._behind_passed_on(vertex)
        if number := self.numbers.get(shown.key):
            is_running = shown.kind == "execution" and (shown.task_id or shown is not vertex)
            return f"{describe(shown)} ({'running as ' if is_running else ''}{number})"
        if is_queued(vertex) and vertex.wait:
            before = [self._behind_passed_on(self._narrator.vertices[key]).key for key in targets_of(vertex)]
            if numbers := [self.numbers[key] for key in before if key in self.numbers]:
                limit = f", {limit_in_words(vertex.wait.limit)} is reached" if vertex.wait.limit else ""
                return f"{describe(vertex)} (queued behind {numbers[0]}{limit})"
        return self._narrator.name(vertex)

    def _behind_passed_on(self, vertex: Vertex) -> Vertex:
        """The target of a request that Serve's own code passes on; of any other vertex, the vertex itself."""
        for _ in range(MAX_PASSED_ON):
            targets = list(targets_of(vertex)) if self._narrator.reduced.is_passed_on(vertex) else []
            if not targets or vertex.key in self.numbers:
                break
            vertex = self._narrator.vertices[targets[0]]
        return vertex

    def _also(self, vertex: Vertex) -> tuple[str, ...]:
        if vertex.never is None or vertex.child_pid is not None:
            return ()
        return (text,) if (text := submission(self._narrator, vertex)) else ()


def _folded(first: int, titles: Sequence[Title], shown: int) -> Step:
    """The line for the parts from number ``first`` on, of which as many are ``shown`` before it."""
    span = f"{first + shown}-{first + len(titles) - 1}"
    folded = titles[shown:]
    if len(set(titles)) == 1:
        return Step(text=f"{span}  {len(folded):,} more like {first}")
    counts = Counter(name for name, _, _ in folded)
    return Step(text=f"{span}  {shortly([_times(*one) for one in counts.items()])}")


def _is_setup(vertex: Vertex) -> bool:
    return isinstance(vertex.key, UnknownKey) and vertex.key.is_setup


def _times(name: str, count: int) -> str:
    """The name, with the number of vertices if there are several."""
    return name if count == 1 else f"{count:,} × {name}"


def is_queued(vertex: Vertex) -> bool:
    """Whether it is a call or request that has not begun because another one occupies its slot."""
    if vertex.wait is None:
        return False
    return (vertex.kind == "task" and vertex.wait.kind in QUEUES) or (
        vertex.wait.kind == "Serve slot" and bool(vertex.wait.limit)
    )


def parts_by_name(vertices: Iterable[Vertex]) -> list[Part]:
    """One part for the vertices of each name, in the order of the first of each."""
    groups: dict[str, list[Vertex]] = defaultdict(list)
    for vertex in vertices:
        groups[describe(vertex)].append(vertex)
    return [Part(some, _times(name, len(some))) for name, some in groups.items()]


def _actor(details: VertexDetails) -> str:
    """``actor "cashier"``; of a library only what its execution's name does not say: ``process 8dceef6a``."""
    if details.actor_id is None:
        return ""
    part = ray_libraries.part(details.actor_class or "", details.actor_name or "", details.actor_id)
    if part and part.which and part.name in details.execution:
        return part.which.strip(", ")
    return names.short_actor(details.actor_class or "", details.actor_name or "", details.actor_id)


def _place(details: VertexDetails, *, is_named: bool) -> tuple[str, ...]:
    """``('actor "cashier"', 'rank 3', 'pid 7621 on 192.0.2.2')``, without unknown parts."""
    node = f" on {details.node_ip}" if details.node_ip else ""
    process = f"pid {details.pid}{node}" if details.pid else ""
    ranks = details.ranks.in_words
    shown_ranks = "" if is_named and ranks == f"rank {details.ranks.rank}" else ranks
    return tuple(part for part in (_actor(details), shown_ranks, process) if part)
