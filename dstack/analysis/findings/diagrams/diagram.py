"""The diagram of a finding: its cycle or chain as a few numbered entries, with repeats folded."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dstack.analysis.findings.diagrams.entries import Entries, Part, is_queued, parts_by_name
from dstack.analysis.findings.diagrams.failed_call import failed_call
from dstack.analysis.findings.diagrams.longest_path import longest_chain
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.kinds.deadlock import not_at_barrier
from dstack.analysis.findings.wording.collectives import absent_steps, call_in_words, ranks_of_call
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.group_ranks import CollectiveCall, ranks_in
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.findings.wording.restarts import restart_steps
from dstack.analysis.findings.wording.shared_calls import shared_call_steps, shared_calls
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import fails_in, step_at
from dstack.diagnosis import Diagram, Entry, Step, Vertex
from dstack.words import plural

SHOWN_REMARKS = 4
SHOWN_BEHIND = 1
SHOWN_ENDS = 2


def diagram(draft: Draft, narrator: Narrator) -> Diagram:
    """The finding at a glance; everything else is in its explanation."""
    drawing = _Drawing(draft, narrator)
    return Diagram(
        is_cycle=bool(draft.cycle),
        rows=tuple(drawing.rows()),
        behind=tuple(drawing.behind()),
        remarks=tuple(drawing.remarks()),
    )


class _Drawing:
    """The diagram of one finding, as it is made."""

    def __init__(self, draft: Draft, narrator: Narrator) -> None:
        self._draft = draft
        self._narrator = narrator
        self._reduced = draft.reduced
        cycle = [key for key in draft.cycle if not self._reduced.is_helper(key)]
        following = dict(zip(cycle, (*cycle[1:], *cycle[:1]), strict=True)) if len(cycle) > 1 else {}
        parts = self._of_cycle() if draft.cycle else self._of_ranks() or self._of_chain()
        if draft.failure is not None:
            parts = self._of_ranks() or parts_by_name(narrator.vertices_of(draft.waits))
        self._entries = Entries(draft, narrator, parts, following)
        self._numbers = self._entries.numbers

    def rows(self) -> Iterator[Entry | Step]:
        """The entries, folded if there are many; then the calls that not all similar executions have entered."""
        yield from self._entries.rows()
        if self._draft.failure is not None:
            yield failed_call(self._draft.failure, number=len(self._numbers) + 1)
        yield from absent_steps(self._draft, self._narrator)
        calls = shared_calls(self._draft, self._narrator) if self._draft.final_blockers else []
        several = [call for call in calls if len(call.inside) > 1 or call.absent or call.idle]
        yield from list(shared_call_steps(several, self._narrator, self._numbers))[:SHOWN_REMARKS]

    def behind(self) -> Iterator[Step]:
        """What is blocked behind a deadlock or hang, similar ones once; executions, which have lines, first."""
        keys = [key for key in (*self._draft.behind, *self._draft.polled_by) if key not in self._numbers]
        vertices = [one for one in self._narrator.vertices_of(keys) if not self._reduced.is_passed_on(one)]
        executions = [vertex for vertex in vertices if vertex.kind == "execution"]
        executions.sort(key=lambda vertex: not self._reduced.is_in_users_code(vertex.key))
        parts = parts_by_name(executions)[:SHOWN_BEHIND]
        for part in parts:
            yield step_at(part.name, self._narrator.details(part.first), part.first)
        shown = sum(len(part.vertices) for part in parts)
        if omitted := len(vertices) - shown:
            yield Step(text=plural(omitted, "more waiter" if shown else "pending call"))

    # Which vertices are entries

    def _of_cycle(self) -> list[Part]:
        draft, ranks = self._draft, self._of_ranks()
        described = {vertex.key for part in ranks for vertex in part.vertices}
        described |= ranks_in(draft, self._narrator).described
        cycle = [self._narrator.vertices[key] for key in draft.cycle if not self._reduced.is_helper(key)]
        own = [vertex for vertex in cycle if not is_queued(vertex)] or cycle
        inside = described.union(draft.cycle)
        missing = [vertex for vertex in not_at_barrier(draft, self._narrator) if vertex.key not in inside]
        in_order = (Part([vertex]) for vertex in own if vertex.key not in described)
        parts = [*ranks, *in_order, *parts_by_name(missing)]
        return parts if len(parts) != 1 or len(draft.waits) == 1 else [*parts, *self._partners(parts[0])]

    def _partners(self, only: Part) -> list[Part]:
        """The other members in the user's code, if the cycle has one entry that does not wait for itself."""
        if any(is_queued(self._narrator.vertices[key]) for key in self._draft.cycle):
            return []
        keys = {vertex.key for vertex in only.vertices}
        own = [key for key in self._draft.waits if key not in keys and self._reduced.is_in_users_code(key)]
        return parts_by_name(self._narrator.vertices_of(own))

    def _of_ranks(self) -> list[Part]:
        """The calls on process groups with the ranks in them, then the ranks that are elsewhere."""
        ranks = ranks_in(self._draft, self._narrator)
        if not ranks.calls:
            return []
        elsewhere = [Part([vertex], f"rank {rank}: {describe(vertex)}") for vertex, rank in ranks.elsewhere]
        return [*map(self._of_call, ranks.calls), *elsewhere]

    def _of_call(self, call: CollectiveCall) -> Part:
        """``ranks 0-2 of 4: Worker.step``, which is ``in all_reduce of group dp, waiting for rank 3``."""
        callers = [ranks_in(self._draft, self._narrator).caller(vertex) for vertex in call.inside]
        missing = f", waiting for {names.ranks(call.missing, call.call.group)}" if call.missing else ""
        return Part(
            list({vertex.key: vertex for vertex in (*callers, *call.inside)}.values()),
            f"{ranks_of_call(call)}: {describe(callers[0])}",
            f"in {call_in_words(call)}{missing}{fails_in(self._narrator.index, call.call)}",
        )

    def _of_chain(self) -> list[Part]:
        """The longest path from a waiter to the first final blocker, or to what is unsatisfiable."""
        draft, vertices = self._draft, self._narrator.vertices
        ends = draft.ends or list(draft.waits)
        waiters = (*draft.waits, *draft.behind)
        path = longest_chain(vertices, waiters, ends[0], self._reduced.is_in_users_code) if ends else []
        if path and vertices[path[-1]].kind == "lifetime":
            path += [end for end in ends if end not in path and vertices[end].kind == "execution"][:1]
        return [Part([vertex]) for vertex in map(vertices.__getitem__, path) if self._is_entry(vertex)]

    def _is_entry(self, vertex: Vertex) -> bool:
        is_helper = self._reduced.is_helper(vertex.key) and vertex.never is None
        return not (is_helper or vertex.waker_of or is_queued(vertex))

    # Remarks

    def remarks(self) -> Iterator[Step]:
        """Other members and final blockers, restarts and failures; at most a few."""
        failures = map(step_of_failure, self._narrator.unreported_failures(self._draft))
        remarks = [*self._others(), *failures]
        yield from remarks[:SHOWN_REMARKS]
        if len(remarks) > SHOWN_REMARKS:
            yield Step(text=f"{plural(len(remarks) - SHOWN_REMARKS, 'more remark')} in the details")

    def _others(self) -> Iterator[Step]:
        if self._draft.final_blockers:
            yield from self._other_ends()
            yield from restart_steps(self._draft, self._narrator)
        elif self._draft.cycle:
            yield from self._other_members()

    def _other_ends(self) -> Iterator[Step]:
        """The final blockers that are not in the chain that is drawn."""
        ends = [key for key in self._draft.ends if key not in self._numbers]
        known = [key for key in ends if not self._narrator.vertices[key].waker_of]
        for key in known[:SHOWN_ENDS]:
            step = self._narrator.step(key)
            yield replace(step, text=f"Final blocker: {step.text}")
        if len(known) > SHOWN_ENDS:
            yield Step(text=f"{plural(len(known) - SHOWN_ENDS, 'more final blocker')}")

    def _other_members(self) -> Iterator[Step]:
        """The members of a deadlock outside of the cycle that is drawn, similar ones once."""
        inside = {*self._draft.cycle, *self._numbers, *ranks_in(self._draft, self._narrator).described}
        others = [key for key in self._draft.waits if key not in inside and self._reduced.is_counted(key)]
        vertices = [vertex for vertex in self._narrator.vertices_of(others) if not is_queued(vertex)]
        own = parts_by_name([vertex for vertex in vertices if self._reduced.is_in_users_code(vertex.key)])
        for part in own[:SHOWN_ENDS]:
            details = self._narrator.details(part.first)
            yield step_at(f"Also in the deadlock: {part.name}", details, part.first)
        omitted = len(vertices) - sum(len(part.vertices) for part in own[:SHOWN_ENDS])
        if omitted:
            yield Step(text=f"{plural(omitted, 'more member')} of the deadlock")
