"""The diagram of a finding: its cycle or chain as a few numbered entries, with repeats folded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from dstack.analysis.findings.actor_starts import start_steps
from dstack.analysis.findings.collectives import absent_steps, call_in_words, missing_rank, ranks_of_call
from dstack.analysis.findings.failures import happened_ago
from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.finding_facts import FindingFacts, has_not_begun
from dstack.analysis.findings.group_ranks import CollectiveCall, failure_of
from dstack.analysis.findings.kinds.open_chain import (
    caller_steps,
    library_steps,
    memory_kills,
    other_side_steps,
    restart_steps,
)
from dstack.analysis.findings.kinds.unsatisfiable import submission
from dstack.analysis.findings.narration import SHOWN_BEHIND, SHOWN_OTHERS, SHOWN_PARTS, Narrator
from dstack.analysis.findings.outside_waits import end_of_loop
from dstack.analysis.findings.shared_calls import shared_call_steps
from dstack.analysis.index.ray_libraries import library_of
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.descriptions import describe, further_reports, limit_in_words
from dstack.analysis.naming.ends import ended_children, ended_in_words
from dstack.analysis.naming.vertex_details import VertexDetails
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Diagram, Entry, FailedBefore, Step, Target, Vertex, Wait
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.words import SHOWN, distinct, plural, shortly, times_of

MAX_PASSED_ON = 4
SETUP = "installation of its runtime environment"

Title: TypeAlias = tuple[str, "str | None", "int | None"]
"""The name, file and line by which entries are alike."""


@dataclass(frozen=True, slots=True)
class Part:
    """The similar vertices that become one entry; ``name`` and ``does`` replace those of the first vertex.

    ``is_each`` if what the first does is so for each of them.
    """

    vertices: Sequence[Vertex]
    name: str = ""
    does: str = ""
    is_each: bool = False

    @property
    def first(self) -> Vertex:
        """The vertex whose place and line are shown."""
        return self.vertices[0]


def diagram(facts: FindingFacts, narrator: Narrator) -> Diagram:
    """The finding at a glance; everything else is in its explanation."""
    drawing = _Drawing(facts, narrator)
    return Diagram(
        is_cycle=bool(facts.draft.cycle),
        rows=tuple(drawing.rows()),
        behind=tuple(drawing.behind()),
        remarks=tuple(drawing.remarks()),
    )


# Which vertices are entries


def _parts(facts: FindingFacts) -> list[Part]:
    """The entries of a cycle, of the calls on groups, of failed calls, or of the longest chain."""
    if facts.draft.cycle:
        return _of_cycle(facts)
    if ranks := _of_ranks(facts):
        return ranks
    if facts.draft.failure is not None:
        return _by_name(facts.waits)
    chain = facts.longest_chain
    known = [vertex for vertex in chain if not (_stands_for_others(facts, vertex) or has_not_begun(vertex))]
    if facts.draft.is_open:
        known = [*_waiter_before(facts, known), *known]
        known = [vertex for vertex in known if not facts.reduced.is_machinery(vertex.key)] or known
    own = [Part([vertex]) for vertex in known]
    return [*own, *_at_other_ends(facts, {vertex.key for vertex in chain})]


def _waiter_before(facts: FindingFacts, chain: Sequence[Vertex]) -> list[Vertex]:
    """The user's code that waits in an open chain, a driver if possible, where that which is drawn has none."""
    reduced = facts.reduced
    if not facts.draft.is_open or any(vertex.wait and reduced.is_in_users_code(vertex.key) for vertex in chain):
        return []
    own = [vertex for vertex in facts.members if reduced.is_in_users_code(vertex.key)]
    return sorted(own, key=lambda vertex: not reduced.is_driver(vertex))[:1]


def _at_other_ends(facts: FindingFacts, drawn: set[Key]) -> list[Part]:
    """The waits in the processes at the other ends of pipes and sockets, and other waits for the same processes."""
    reduced = facts.reduced
    linked: set[Key] = set()
    for vertex in facts.waits:
        if vertex.wait and vertex.wait.kernel:
            linked.update((vertex.key, *reduced.linked_to(vertex.key)))
    others = (vertex for vertex in facts.waits if vertex.key in linked - drawn and not reduced.is_resting(vertex))
    return _by_name(vertex for vertex in others if reduced.is_in_users_code(vertex.key))


def _stands_for_others(facts: FindingFacts, vertex: Vertex) -> bool:
    """Whether it only stands for other vertices, or is unknown."""
    return bool(vertex.waker_of) or (facts.reduced.is_helper(vertex.key) and vertex.never is None)


def _of_cycle(facts: FindingFacts) -> list[Part]:
    ranks = _of_ranks(facts)
    described = {vertex.key for part in ranks for vertex in part.vertices}
    own = [vertex for vertex in facts.deadlock.shown_cycle if not has_not_begun(vertex)] or facts.deadlock.shown_cycle
    inside = described.union(facts.draft.cycle)
    missing = [vertex for vertex in facts.not_at_barrier if vertex.key not in inside]
    in_order = (_with_alike(facts, vertex) for vertex in own if vertex.key not in described)
    parts = [*ranks, *in_order, *_by_name(missing)]
    return parts if len(parts) != 1 or len(facts.waits) == 1 else [*parts, *_partners(facts, parts[0])]


def _with_alike(facts: FindingFacts, vertex: Vertex) -> Part:
    """A vertex of the cycle with the members that do the same."""
    some = facts.deadlock.alike(vertex)
    return Part(some, times_of(describe(vertex), len(some)) if len(some) > 1 else "", is_each=len(some) > 1)


def _partners(facts: FindingFacts, only: Part) -> list[Part]:
    """The other members in the user's code, if the cycle has one entry that does not wait for itself."""
    if any(map(has_not_begun, facts.deadlock.cycle)):
        return []
    keys = {vertex.key for vertex in only.vertices}
    own = (vertex for vertex in facts.waits if vertex.key not in keys)
    return _by_name(vertex for vertex in own if facts.reduced.is_in_users_code(vertex.key))


def _of_ranks(facts: FindingFacts) -> list[Part]:
    """The calls on process groups with the ranks in them, then the ranks that are elsewhere."""
    if not facts.ranks.calls:
        return []
    missing = ((vertex, missing_rank(facts, vertex, rank)) for vertex, rank in facts.ranks.elsewhere)
    elsewhere = [Part([vertex], f"{rank}: {describe(vertex)}") for vertex, rank in missing]
    return [*(_of_call(facts, call) for call in facts.ranks.calls), *elsewhere]


def _of_call(facts: FindingFacts, call: CollectiveCall) -> Part:
    """``ranks 0-2 of 4: Worker.step``, which is ``in all_reduce of group dp, waiting for rank 3``."""
    callers = [facts.ranks.caller(vertex) for vertex in call.inside]
    missing = f", waiting for {names.ranks(call.missing, call.call.group)}" if call.missing else ""
    return Part(
        list({vertex.key: vertex for vertex in (*callers, *call.inside)}.values()),
        f"{ranks_of_call(call)}: {describe(callers[0])}",
        f"in {call_in_words(call)}{missing}{sentences.fails_in(facts.reduced.index, call.call)}",
    )


def _by_name(vertices: Iterable[Vertex]) -> list[Part]:
    """One part for the vertices of each name, in the order of the first of each."""
    groups: dict[str, list[Vertex]] = defaultdict(list)
    for vertex in vertices:
        groups[describe(vertex)].append(vertex)
    return [Part(some, times_of(name, len(some))) for name, some in groups.items()]


class _Drawing:
    """The diagram of one finding, as it is made; in a cycle each entry waits for the following vertex."""

    def __init__(self, facts: FindingFacts, narrator: Narrator) -> None:
        self._facts = facts
        self._narrator = narrator
        self._reduced = facts.reduced
        self._parts = _parts(facts)
        self._numbers = {vertex.key: number for number, part in enumerate(self._parts, 1) for vertex in part.vertices}
        self._own = {*self._numbers, *facts.draft.waits, *facts.draft.behind}

    # Rows

    def rows(self) -> Iterator[Entry | Step]:
        """The entries, folded if there are many; then the calls that not all similar executions have entered."""
        yield from self._distinct(list(self._entries()))
        if self._facts.draft.failure is not None:
            yield _failed_call(self._facts.draft.failure, number=len(self._numbers) + 1)
        yield from absent_steps(self._facts)
        yield from start_steps(self._facts.actor_starts)
        calls = self._facts.shared_calls if self._facts.draft.final_blockers else []
        shared = [call for call in calls if call.is_shared]
        yield from list(shared_call_steps(shared, self._narrator, self._numbers))[:SHOWN_PARTS]

    def _entries(self) -> Iterator[Entry | Step]:
        """The first entry, the last, and a line for each between; of many only one line, and the others' names.

        Entries of thousands of folded parts are not made.
        """
        parts = list(enumerate(self._parts, 1))
        if len(parts) <= 2:
            yield from (self._entry(number, part) for number, part in parts)
            return
        first, *between, last = parts
        yield self._entry(*first)
        shown = between if len(between) <= SHOWN else between[:1]
        yield from (self._entry(number, part, is_brief=True) for number, part in shown)
        if len(shown) < len(between):
            yield _folded(between[0][0], [self._title(part) for _, part in between], len(shown))
        yield self._entry(*last)

    def _distinct(self, rows: Sequence[Entry | Step]) -> Iterator[Entry | Step]:
        """The rows; entries that read the same also have what distinguishes them: process, task, coroutine, thread."""
        entries = [row for row in rows if isinstance(row, Entry)]
        texts = [(one.name, *one.place, one.file, one.line) for one in entries]
        more = dict(zip(map(id, entries), distinct(texts, list(map(self._distinguishing, entries))), strict=True))
        for row in rows:
            yield replace(row, place=(*row.place, *more[id(row)])) if isinstance(row, Entry) and more[id(row)] else row

    def _distinguishing(self, entry: Entry) -> Sequence[str]:
        if entry.vertex is None:
            return ()
        details = self._narrator.details(self._narrator.vertices[entry.vertex])
        own = (*details.actor_and_rank[: details.says_part], details.process) if entry.is_brief else ()
        return (*own, *details.ids)

    def _title(self, part: Part) -> Title:
        """The name, file and line of the part's entry."""
        vertex = part.first
        if _is_setup(vertex):  # its label is long, and in the headline
            return SETUP, None, None
        if vertex.kind == "lifetime":
            return describe(vertex), None, None
        details = self._narrator.details(vertex)
        return part.name or details.execution, details.file, details.line

    def _entry(self, number: int, part: Part, *, is_brief: bool = False) -> Entry:
        vertex = part.first
        name, file, line = self._title(part)
        if _is_setup(vertex):
            return Entry(number=number, name=name, vertex=vertex.key)
        details = self._narrator.details(vertex)
        if vertex.kind == "lifetime":
            return Entry(number=number, name=name, vertex=vertex.key, does=self._does(vertex, details))
        is_request = vertex.never is not None and not vertex.child_pid
        owner = [submission(self._narrator.index, vertex)] if is_request else []
        return Entry(
            number=number,
            name=name,
            vertex=vertex.key,
            place=() if is_request else self._place(details, is_named=bool(part.name), is_brief=is_brief),
            file=file,
            line=line,
            source=details.source,
            does=part.does or f"{'each ' * part.is_each}{self._does(vertex, details)}",
            also=tuple(filter(None, (*owner, *self._remarks(vertex, details)))),
            is_brief=is_brief,
        )

    @staticmethod
    def _place(details: VertexDetails, *, is_named: bool, is_brief: bool) -> tuple[str, ...]:
        """``('actor "cashier"', 'rank 3', 'pid 7621 on 192.0.2.2')``, without unknown parts; in short without the last.

        The name of a part may have the rank.
        """
        rank = f"rank {details.ranks.rank}"
        known = (details.ranks.in_words,) if is_brief and details.says_part else details.actor_and_rank
        own = tuple(part for part in known if part and not (is_named and part == rank))
        return own if is_brief or not details.process else (*own, details.process)

    def _remarks(self, vertex: Vertex, details: VertexDetails) -> Iterator[str]:
        if end := end_of_loop(vertex, details):
            yield f"its loop {end}"
        yield from further_reports(vertex)
        yield from map(ended_in_words, ended_children(self._narrator.index, vertex))

    def _does(self, vertex: Vertex, details: VertexDetails) -> str:
        if len(self._facts.deadlock.shown_cycle) > 1 and (following := self._facts.deadlock.following.get(vertex.key)):
            vertex = self._narrator.in_cycle(vertex, following)
        if vertex.wait is not None and vertex.wait.polls:
            vertex = replace(vertex, wait=replace(vertex.wait, polls=""))  # its line is the entry's, or one of Ray's
        if not self._facts.draft.is_open or vertex.wait is None:
            return sentences.predicate(self._narrator.index, self._narrator.vertices, vertex, details, self._name)
        shown = replace(vertex, wait=self._without_machinery(vertex.key, vertex.wait))
        name_of = partial(self._name_behind, vertex.key)
        return sentences.predicate(self._narrator.index, self._narrator.vertices, shown, details, name_of)

    def _name_behind(self, waiter: Key, vertex: Vertex) -> str:
        """A target; of machinery what it waits for itself: ``epochs (2) through Train's controller``."""
        behind = self._behind(vertex.key, waiter)
        if behind is None or (behind not in self._numbers and not self._reduced.is_machinery(vertex.key)):
            return self._name(vertex)
        library = library_of(self._narrator.index, vertex)
        return self._name(self._narrator.vertices[behind]) + (f" through {library}" if library else "")

    def _behind(self, key: Key, waiter: Key) -> Key | None:
        """What machinery, or any code of an actor, leads to: an entry if possible."""
        if not (self._reduced.is_machinery(key) or self._reduced.is_any_code(key)):
            return None
        behind = self._reduced.behind_machinery(key, waiter)
        return next(iter((*filter(self._numbers.__contains__, behind), *behind)), None)

    def _without_machinery(self, waiter: Key, wait: Wait) -> Wait:
        """A wait of an open chain for code of the application, and for machinery that leads to other, if it has any."""
        named = {target.vertex for target in wait.targets if not self._reduced.is_machinery(target.vertex)}

        def is_shown(target: Target) -> bool:
            if not self._reduced.is_machinery(target.vertex):
                return not self._reduced.is_any_code(target.vertex)
            behind = self._behind(target.vertex, waiter)
            is_new = behind is not None and behind not in named
            named.update([behind] if behind else [])
            return is_new

        groups = (replace(one, targets=tuple(filter(is_shown, one.targets))) for one in wait.groups)
        left = tuple(group for group in groups if group.targets)
        return replace(wait, groups=left) if left else wait

    def _name(self, vertex: Vertex) -> str:
        """A target with its number: ``Kitchen.cook (→2)``, ``Cashier.is_paid (queued behind →1)``."""
        if _is_setup(vertex):
            return SETUP
        if vertex.key not in self._own:
            return self._narrator.name(vertex)
        shown = self._behind_passed_on(vertex)
        if number := self._numbers.get(shown.key):
            return f"{describe(shown)} (→{number})"
        if has_not_begun(vertex) and vertex.wait and (number := self._number_before(vertex)):
            limit = f", {limit_in_words(vertex.wait.limit)} is reached" if vertex.wait.limit else ""
            name = times_of(describe(vertex), len(self._facts.deadlock.alike(vertex)))
            return f"{name} (queued behind →{number}{limit})"
        return self._narrator.name(vertex)

    def _number_before(self, vertex: Vertex) -> int | None:
        """The number of the first entry that a call is queued behind, directly or by a helper for any of many."""
        ahead = [*targets_of(vertex)]
        ahead += [
            key for one in ahead if self._reduced.is_helper(one) for key in targets_of(self._reduced.vertices[one])
        ]
        before = (self._behind_passed_on(target).key for target in self._reduced.vertices_of(ahead))
        return next((self._numbers[key] for key in before if key in self._numbers), None)

    def _behind_passed_on(self, vertex: Vertex) -> Vertex:
        """The target of a request that Serve's own code passes on; of any other vertex, the vertex itself."""
        for _ in range(MAX_PASSED_ON):
            targets = list(targets_of(vertex)) if self._reduced.is_passed_on(vertex) else []
            if not targets or vertex.key in self._numbers:
                break
            vertex = self._reduced.vertices[targets[0]]
        return vertex

    # Below the rows

    def behind(self) -> Iterator[Step]:
        """What is blocked behind a deadlock or hang, similar ones once; executions, which have lines, first."""
        draft = self._facts.draft
        keys = [key for key in (*draft.behind, *draft.polled_by) if key not in self._numbers]
        vertices = [one for one in self._reduced.vertices_of(keys) if not self._reduced.is_passed_on(one)]
        executions = [vertex for vertex in vertices if vertex.kind == "execution"]
        executions.sort(key=lambda vertex: not self._reduced.is_in_users_code(vertex.key))
        shown = 0
        for part in _by_name(executions)[:SHOWN_BEHIND]:
            shown += len(part.vertices)
            yield self._named_line(part)
        if omitted := len(vertices) - shown:
            yield Step(text=plural(omitted, "more waiter" if shown else "pending call"))

    def remarks(self) -> Iterator[Step]:
        """Other members and final blockers, restarts and failures; at most a few."""
        lost = {failed.task_id for one in self._facts.ranks.lost if (failed := failure_of(self._reduced, one))}
        failures = (step_of_failure(one) for one in self._facts.unreported_failures if one.task_id not in lost)
        remarks = [*other_side_steps(self._facts, self._narrator, self._numbers), *self._others(), *failures]
        yield from remarks[:SHOWN_PARTS]
        if len(remarks) > SHOWN_PARTS:
            yield Step(text=f"{plural(len(remarks) - SHOWN_PARTS, 'more remark')} in the details")

    def _others(self) -> Iterator[Step]:
        if self._facts.draft.final_blockers:
            yield from self._other_ends()
            yield from restart_steps(self._facts)
            yield from memory_kills(self._facts)
            yield from library_steps(self._facts)
            yield from caller_steps(self._facts, self._narrator)
        elif self._facts.draft.cycle:
            yield from self._other_members()

    def _other_ends(self) -> Iterator[Step]:
        """The final blockers that are not in the chain that is drawn."""
        counted = {key for starts in self._facts.actor_starts for key in starts.described}
        known = [end for end in self._facts.known_ends if end.key not in self._numbers and end.key not in counted]
        for step in map(self._narrator.step, known[:SHOWN_OTHERS]):
            yield replace(step, text=f"Final blocker: {step.text}")
        if len(known) > SHOWN_OTHERS:
            yield Step(text=f"{plural(len(known) - SHOWN_OTHERS, 'more final blocker')}")

    def _other_members(self) -> Iterator[Step]:
        """The members of a deadlock outside of the cycle that is drawn, similar ones once."""
        others = [one for one in self._facts.others(self._numbers) if one.is_counted and not has_not_begun(one)]
        own = _by_name(vertex for vertex in others if self._reduced.is_in_users_code(vertex.key))[:SHOWN_OTHERS]
        for part in own:
            yield self._named_line(part, "Also in the deadlock: ")
        if omitted := len(others) - sum(len(part.vertices) for part in own):
            yield Step(text=f"{plural(omitted, 'more member')} of the deadlock")

    def _named_line(self, part: Part, lead: str = "") -> Step:
        """The name of a part with the line of its first vertex."""
        return sentences.step_at(f"{lead}{part.name}", self._narrator.details(part.first), part.first)


def _failed_call(failure: FailedBefore, number: int) -> Entry:
    """``Worker.run   actor "a"   pid 7 on 10.0.0.1``, its line, and its error."""
    on = f" on {failure.node_ip}" if failure.node_ip else ""
    place = (failure.actor or "", f"pid {failure.pid}{on}" if failure.pid else "")
    return Entry(
        number=number,
        name=failure.name,
        place=tuple(filter(None, place)),
        file=failure.file,
        line=failure.line,
        source=failure.source,
        does=happened_ago(failure),
        also=("its result is still held, but nothing waits for it",),
    )


def _folded(first: int, titles: Sequence[Title], shown: int) -> Step:
    """The line for the parts from number ``first`` on, of which as many are ``shown`` before it."""
    span = f"{first + shown}-{first + len(titles) - 1}"
    folded = titles[shown:]
    if len(set(titles)) == 1:
        return Step(text=f"{span}  {len(folded):,} more like {first}")
    counts = Counter(name for name, _, _ in folded)
    return Step(text=f"{span}  {shortly([times_of(*one) for one in counts.items()])}")


def _is_setup(vertex: Vertex) -> bool:
    return isinstance(vertex.key, UnknownKey) and vertex.key.is_setup
