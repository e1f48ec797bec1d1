"""The diagram of a finding: its cycle or chain as a few numbered entries, pending calls merged, repeats folded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dstack.analysis import names, sentences
from dstack.analysis.findings import collectives
from dstack.analysis.findings.alike import gatherings, memberships
from dstack.analysis.findings.deadlock import late_for_barrier
from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.group_ranks import Ranks
from dstack.analysis.findings.never_given import submission
from dstack.analysis.findings.paths import longest_chain
from dstack.analysis.findings.restarts import restart_steps
from dstack.analysis.findings.telling import Teller
from dstack.analysis.members import Member
from dstack.analysis.requirements import targets_of
from dstack.analysis.serve_requests import SLOT
from dstack.diagnosis import Diagram, Entry, Finding, Step, Vertex
from dstack.vertex_keys import UnknownKey
from dstack.words import plural, shortly

SHOWN_BRIEF = 3
"""So many entries between the first and the last have a line each; of more, only the first has."""
SHOWN_REMARKS = 4
SHOWN_BEHIND = 1
SHOWN_ENDS = 2
SHOWN_NAMES = 3
MAX_PASSED_ON = 4
SETUP = "installation of its runtime environment"
QUEUES = ("actor slot", "event loop")
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


def diagram(finding: Finding, teller: Teller) -> Diagram:
    """The finding at a glance; everything else is in its explanation."""
    drawing = _Drawing(finding, teller)
    return Diagram(
        is_cycle=bool(finding.cycle),
        rows=tuple(drawing.rows()),
        behind=tuple(drawing.behind()),
        remarks=tuple(drawing.remarks()),
    )


class _Drawing:
    """One finding on its way to a diagram."""

    def __init__(self, finding: Finding, teller: Teller) -> None:
        self._finding = finding
        self._teller = teller
        self._parts = self._parts_in_order()
        cycle = [key for key in finding.cycle if not teller.situation.is_helper(key)]
        self._following = dict(zip(cycle, (*cycle[1:], *cycle[:1]), strict=True)) if len(cycle) > 1 else {}
        self._numbers = {vertex.key: number for number, part in enumerate(self._parts, 1) for vertex in part.vertices}

    def rows(self) -> Iterator[Entry | Step]:
        """The entries, folded where there are many; then who is in a call that others have not come to."""
        yield from _folded([self._entry(number, part) for number, part in enumerate(self._parts, 1)])
        yield from collectives.absent_steps(self._finding, self._teller)
        groups = gatherings(self._finding, self._teller) if self._finding.final_blockers else []
        several = [one for one in groups if len(one.inside) > 1 or one.absent or one.idle]
        yield from list(memberships(several, self._teller, self._numbers))[:SHOWN_REMARKS]

    def behind(self) -> Iterator[Step]:
        """What is blocked behind a deadlock or hang, alike ones once; executions first, since they have lines."""
        keys = [key for key in (*self._finding.blocked_behind, *self._finding.polled_by) if key not in self._numbers]
        vertices = [
            vertex for vertex in self._teller.vertices_of(keys) if not self._teller.situation.is_passed_on(vertex)
        ]
        executions = [vertex for vertex in vertices if vertex.kind == "execution"]
        executions.sort(key=lambda vertex: not self._teller.situation.is_in_users_code(vertex.key))
        parts = _alike(executions)[:SHOWN_BEHIND]
        for part in parts:
            yield sentences.at(part.name, self._teller.member(part.first), part.first)
        shown = sum(len(part.vertices) for part in parts)
        if rest := len(vertices) - shown:
            yield Step(text=plural(rest, "pending call") if not shown else plural(rest, "more waiter"))

    # Which vertices are entries

    def _parts_in_order(self) -> list[Part]:
        if self._finding.cycle:
            return self._of_cycle()
        ranks = self._of_ranks()
        return ranks or self._of_chain()

    def _of_cycle(self) -> list[Part]:
        situation = self._teller.situation
        ranks = self._of_ranks()
        described = {vertex.key for part in ranks for vertex in part.vertices}
        described |= collectives.described(self._finding, self._teller)
        cycle = [self._teller.vertices[key] for key in self._finding.cycle if not situation.is_helper(key)]
        own = [vertex for vertex in cycle if not _is_queued(vertex)] or cycle
        inside = described.union(self._finding.cycle)
        late = [vertex for vertex in late_for_barrier(self._finding, self._teller) if vertex.key not in inside]
        parts = [*ranks, *(Part([vertex]) for vertex in own if vertex.key not in described), *_alike(late)]
        return parts if len(parts) != 1 or len(self._finding.members) == 1 else [*parts, *self._partners(parts[0])]

    def _partners(self, only: Part) -> list[Part]:
        """The other members in the user's code, where one alone is in the cycle and does not wait for itself."""
        situation = self._teller.situation
        if any(_is_queued(self._teller.vertices[key]) for key in self._finding.cycle):
            return []
        keys = {vertex.key for vertex in only.vertices}
        own = [key for key in self._finding.members if key not in keys and situation.is_in_users_code(key)]
        return _alike(self._teller.vertices_of(own))

    def _of_ranks(self) -> list[Part]:
        """The calls on process groups with the ranks in them, then the ranks that are elsewhere."""
        ranks = Ranks(self._finding, self._teller)
        inside = [Part(*part) for part in collectives.parts(self._finding, self._teller)]
        elsewhere = [Part([vertex], f"rank {rank}: {vertex.label}") for vertex, rank in ranks.elsewhere]
        return [*inside, *elsewhere] if inside else []

    def _of_chain(self) -> list[Part]:
        """The longest way from a waiter to the first final blocker, or to what can never be given."""
        finding, vertices = self._finding, self._teller.vertices
        ends = [blocker.vertex for blocker in finding.final_blockers] or list(finding.members)
        waiters = [*finding.members, *finding.blocked_behind, *finding.helpers]
        path = longest_chain(vertices, waiters, ends[0], self._teller.situation.is_in_users_code) if ends else []
        if path and vertices[path[-1]].kind == "lifetime":
            path += [end for end in ends if end not in path and vertices[end].kind == "execution"][:1]
        shown = [vertex for vertex in map(vertices.__getitem__, path) if self._is_entry(vertex)]
        return [Part([vertex]) for vertex in shown]

    def _is_entry(self, vertex: Vertex) -> bool:
        is_helper = self._teller.situation.is_helper(vertex.key) and vertex.never is None
        return not (is_helper or vertex.other_side_of or _is_queued(vertex))

    # What an entry says

    def _entry(self, number: int, part: Part) -> Entry:
        vertex = part.first
        who = self._teller.member(vertex)
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

    def _does(self, vertex: Vertex, who: Member) -> str:
        if following := self._following.get(vertex.key):
            vertex = self._teller.towards(vertex.key, following)
        if vertex.wait is not None and vertex.wait.polls:
            vertex = replace(vertex, wait=replace(vertex.wait, polls=""))  # its line is the entry's, or one of Ray's
        return sentences.deed(self._teller.observed, self._teller.vertices, vertex, who, self._name)

    def _name(self, vertex: Vertex) -> str:
        """A target with its number: ``Kitchen.cook (running as 2)``, ``Cashier.is_paid (queued behind 1)``."""
        stands_for = self._behind_passed_on(vertex)
        if _is_setup(vertex):
            return SETUP
        if number := self._numbers.get(stands_for.key):
            is_running = stands_for.kind == "execution" and (stands_for.task_id or stands_for is not vertex)
            return f"{stands_for.label} ({'running as ' if is_running else ''}{number})"
        if _is_queued(vertex) and vertex.wait:
            before = [self._behind_passed_on(self._teller.vertices[key]).key for key in targets_of(vertex)]
            if numbers := [self._numbers[key] for key in before if key in self._numbers]:
                limit = f", {vertex.wait.what} is reached" if vertex.wait.kind == SLOT and vertex.wait.what else ""
                return f"{vertex.label} (queued behind {numbers[0]}{limit})"
        return sentences.name(self._teller.observed, vertex)

    def _behind_passed_on(self, vertex: Vertex) -> Vertex:
        """What a request stands for that Serve's own code passes on; the vertex itself if it is none."""
        for _ in range(MAX_PASSED_ON):
            targets = list(targets_of(vertex)) if self._teller.situation.is_passed_on(vertex) else []
            if not targets or vertex.key in self._numbers:
                break
            vertex = self._teller.vertices[targets[0]]
        return vertex

    def _also(self, vertex: Vertex) -> tuple[str, ...]:
        if vertex.never is None or vertex.child_pid is not None:
            return ()
        return (text,) if (text := submission(self._teller, vertex)) else ()

    # What is said besides

    def remarks(self) -> Iterator[Step]:
        """Other members and final blockers, restarts and failures; no more than a few."""
        remarks = [*self._others(), *map(step_of_failure, self._finding.failed_before)]
        yield from remarks[:SHOWN_REMARKS]
        if len(remarks) > SHOWN_REMARKS:
            yield Step(text=f"{plural(len(remarks) - SHOWN_REMARKS, 'more remark')} in the details")

    def _others(self) -> Iterator[Step]:
        if self._finding.final_blockers:
            yield from self._other_ends()
            yield from restart_steps(self._finding, self._teller)
        elif self._finding.cycle:
            yield from self._other_members()

    def _other_ends(self) -> Iterator[Step]:
        """The final blockers that are not in the chain that is drawn."""
        ends = [blocker for blocker in self._finding.final_blockers if blocker.vertex not in self._numbers]
        shown = [blocker for blocker in ends if not self._teller.vertices[blocker.vertex].other_side_of]
        for blocker in shown[:SHOWN_ENDS]:
            step = self._teller.step(blocker.vertex)
            yield Step(
                text=f"Final blocker: {step.text}",
                vertex=step.vertex,
                file=step.file,
                line=step.line,
                source=step.source,
            )
        if len(shown) > SHOWN_ENDS:
            yield Step(text=f"{plural(len(shown) - SHOWN_ENDS, 'more final blocker')}")

    def _other_members(self) -> Iterator[Step]:
        """The members of a deadlock beside the cycle that is drawn, alike ones once."""
        inside = {*self._finding.cycle, *self._numbers, *collectives.described(self._finding, self._teller)}
        situation = self._teller.situation
        others = [key for key in self._finding.members if key not in inside and situation.is_counted(key)]
        vertices = [vertex for vertex in self._teller.vertices_of(others) if not _is_queued(vertex)]
        own = _alike([vertex for vertex in vertices if situation.is_in_users_code(vertex.key)])
        for part in own[:SHOWN_ENDS]:
            yield sentences.at(f"Also in the deadlock: {part.name}", self._teller.member(part.first), part.first)
        rest = len(vertices) - sum(len(part.vertices) for part in own[:SHOWN_ENDS])
        if rest:
            yield Step(text=f"{plural(rest, 'more member')} of the deadlock")


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


def _is_queued(vertex: Vertex) -> bool:
    """Whether it is a call or request that has not begun, since something else runs there."""
    if vertex.wait is None:
        return False
    return (vertex.kind == "task" and vertex.wait.kind in QUEUES) or (
        vertex.wait.kind == SLOT and bool(vertex.wait.what)
    )


def _alike(vertices: Iterable[Vertex]) -> list[Part]:
    """Vertices of one name as one part, in the order of the first of each name."""
    groups: dict[str, list[Vertex]] = defaultdict(list)
    for vertex in vertices:
        groups[vertex.label].append(vertex)
    return [Part(some, _times(name, len(some))) for name, some in groups.items()]


def _place(who: Member, *, is_named: bool) -> tuple[str, ...]:
    """``('actor "cashier"', 'rank 3', 'pid 7621 on 192.0.2.2')``, as far as known; no rank that its name has."""
    actor = names.short_actor(who.actor_class or "", who.actor_name or "", who.actor_id) if who.actor_id else ""
    process = f"pid {who.pid}{f' on {who.node_ip}' if who.node_ip else ''}" if who.pid else ""
    ranks = who.ranks.in_words
    return tuple(
        part for part in (actor, "" if is_named and ranks == f"rank {who.ranks.rank}" else ranks, process) if part
    )
