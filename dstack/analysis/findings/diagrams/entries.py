"""The entries of a diagram: what each says of itself and of the entries that it waits for, and how many are folded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dstack.analysis.findings.kinds.unsatisfiable import submission
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.graph.coroutines import EVENT_LOOP
from dstack.analysis.graph.pending.actor_queues import ACTOR_SLOT
from dstack.analysis.graph.serve_requests import SLOT
from dstack.analysis.naming import names, ray_libraries, sentences
from dstack.analysis.naming.vertex_details import VertexDetails
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Entry, Finding, Step, Vertex
from dstack.vertex_keys import Key, UnknownKey
from dstack.words import shortly

SHOWN_BRIEF = 3
"""So many entries between the first and the last have a line each; of more, only the first has."""
SHOWN_NAMES = 3
MAX_PASSED_ON = 4
SETUP = "installation of its runtime environment"
QUEUES = (ACTOR_SLOT, EVENT_LOOP)
"""The waits of a call that has not begun, which are part of the wait that depends on it."""


class Part(NamedTuple):
    """What becomes one entry: alike vertices, with the name of them all, if it is not the first's own."""

    vertices: Sequence[Vertex]
    name: str = ""
    does: str = ""

    @property
    def first(self) -> Vertex:
        """The vertex whose place and line are shown."""
        return self.vertices[0]


class Entries:
    """Makes the entries of one finding from its parts, in order; in a cycle each waits for what is ``following``."""

    def __init__(
        self, finding: Finding, narrator: Narrator, parts: Sequence[Part], following: Mapping[Key, Key]
    ) -> None:
        self._narrator = narrator
        self._parts = parts
        self._following = following
        self.numbers = {vertex.key: number for number, part in enumerate(parts, 1) for vertex in part.vertices}
        self._own = {*self.numbers, *finding.members, *finding.blocked_behind, *finding.helpers}

    def rows(self) -> Iterator[Entry | Step]:
        """All entries, folded where there are many."""
        return _folded([self._entry(number, part) for number, part in enumerate(self._parts, 1)])

    def _entry(self, number: int, part: Part) -> Entry:
        vertex = part.first
        who = self._narrator.member(vertex)
        if _is_setup(vertex):  # its label is long, and in the headline
            return Entry(number=number, name=SETUP, vertex=vertex.key)
        if vertex.kind == "lifetime":
            return Entry(number=number, name=vertex.label, vertex=vertex.key, does=self._does(vertex, who))
        return Entry(
            number=number,
            name=part.name or vertex.label,
            vertex=vertex.key,
            place=() if vertex.never and not vertex.child_pid else _place(who, is_named=bool(part.name)),
            file=who.file,
            line=who.line,
            source=who.source,
            does=part.does or self._does(vertex, who),
            also=self._also(vertex),
        )

    def _does(self, vertex: Vertex, who: VertexDetails) -> str:
        if following := self._following.get(vertex.key):
            vertex = self._narrator.towards(vertex.key, following)
        if vertex.wait is not None and vertex.wait.polls:
            vertex = replace(vertex, wait=replace(vertex.wait, polls=""))  # its line is the entry's, or one of Ray's
        return sentences.predicate(self._narrator.index, self._narrator.vertices, vertex, who, self._name)

    def _name(self, vertex: Vertex) -> str:
        """A target with its number: ``Kitchen.cook (running as 2)``, ``Cashier.is_paid (queued behind 1)``."""
        if _is_setup(vertex):
            return SETUP
        if vertex.key not in self._own:
            return self._narrator.name(vertex)
        stands_for = self._behind_passed_on(vertex)
        if number := self.numbers.get(stands_for.key):
            is_running = stands_for.kind == "execution" and (stands_for.task_id or stands_for is not vertex)
            return f"{stands_for.label} ({'running as ' if is_running else ''}{number})"
        if is_queued(vertex) and vertex.wait:
            before = [self._behind_passed_on(self._narrator.vertices[key]).key for key in targets_of(vertex)]
            if numbers := [self.numbers[key] for key in before if key in self.numbers]:
                limit = f", {vertex.wait.what} is reached" if vertex.wait.kind == SLOT and vertex.wait.what else ""
                return f"{vertex.label} (queued behind {numbers[0]}{limit})"
        return self._narrator.name(vertex)

    def _behind_passed_on(self, vertex: Vertex) -> Vertex:
        """What a request stands for that Serve's own code passes on; the vertex itself if it is none."""
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


def _folded(entries: Sequence[Entry]) -> Iterator[Entry | Step]:
    """The first and the last entry, and those between in a line each; of many only the first, and the others' names."""
    if len(entries) <= 2:
        yield from entries
        return
    first, *between, last = entries
    yield first
    shown = between if len(between) <= SHOWN_BRIEF else between[:1]
    yield from (replace(entry, is_brief=True) for entry in shown)
    if rest := between[len(shown) :]:
        span = f"{rest[0].number}-{rest[-1].number}"
        if {(one.name, one.file, one.line) for one in between} == {(between[0].name, between[0].file, between[0].line)}:
            yield Step(text=f"{span}  {len(rest):,} more like {between[0].number}")
        else:
            counts = Counter(one.name for one in rest)
            yield Step(text=f"{span}  {shortly([_times(*one) for one in counts.items()], SHOWN_NAMES)}")
    yield last


def _is_setup(vertex: Vertex) -> bool:
    return isinstance(vertex.key, UnknownKey) and vertex.key.is_setup


def _times(name: str, count: int) -> str:
    """The name, with the number of its like before it if there are several."""
    return name if count == 1 else f"{count:,} × {name}"


def is_queued(vertex: Vertex) -> bool:
    """Whether it is a call or request that has not begun, since something else runs there."""
    if vertex.wait is None:
        return False
    return (vertex.kind == "task" and vertex.wait.kind in QUEUES) or (
        vertex.wait.kind == SLOT and bool(vertex.wait.what)
    )


def alike(vertices: Iterable[Vertex]) -> list[Part]:
    """Vertices of one name as one part, in the order of the first of each name."""
    groups: dict[str, list[Vertex]] = defaultdict(list)
    for vertex in vertices:
        groups[vertex.label].append(vertex)
    return [Part(some, _times(name, len(some))) for name, some in groups.items()]


def _actor(who: VertexDetails) -> str:
    """``actor "cashier"``; of a library only what its execution's name does not say: ``process 8dceef6a``."""
    if who.actor_id is None:
        return ""
    part = ray_libraries.part(who.actor_class or "", who.actor_name or "", who.actor_id)
    if part and part.which and part.name in who.execution:
        return part.which.strip(", ")
    return names.short_actor(who.actor_class or "", who.actor_name or "", who.actor_id)


def _place(who: VertexDetails, *, is_named: bool) -> tuple[str, ...]:
    """``('actor "cashier"', 'rank 3', 'pid 7621 on 192.0.2.2')``, as far as known; no rank that its name has."""
    actor = _actor(who)
    process = f"pid {who.pid}{f' on {who.node_ip}' if who.node_ip else ''}" if who.pid else ""
    ranks = who.ranks.in_words
    return tuple(
        part for part in (actor, "" if is_named and ranks == f"rank {who.ranks.rank}" else ranks, process) if part
    )
