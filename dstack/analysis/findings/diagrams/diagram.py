"""The diagram of a finding: its cycle or chain as a few numbered entries, pending calls merged, repeats folded."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dstack.analysis.findings.diagrams.entries import Entries, Part, alike, is_queued
from dstack.analysis.findings.diagrams.longest_path import longest_chain
from dstack.analysis.findings.kinds.deadlock import late_for_barrier
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.findings.wording.group_ranks import ranks_in
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.findings.wording.restarts import restart_steps
from dstack.analysis.findings.wording.shared_calls import shared_call_steps, shared_calls
from dstack.analysis.naming import sentences
from dstack.diagnosis import Diagram, Entry, Finding, Step, Vertex
from dstack.words import plural

SHOWN_REMARKS = 4
SHOWN_BEHIND = 1
SHOWN_ENDS = 2


def diagram(finding: Finding, narrator: Narrator) -> Diagram:
    """The finding at a glance; everything else is in its explanation."""
    drawing = _Drawing(finding, narrator)
    return Diagram(
        is_cycle=bool(finding.cycle),
        rows=tuple(drawing.rows()),
        behind=tuple(drawing.behind()),
        remarks=tuple(drawing.remarks()),
    )


class _Drawing:
    """One finding on its way to a diagram."""

    def __init__(self, finding: Finding, narrator: Narrator) -> None:
        self._finding = finding
        self._narrator = narrator
        cycle = [key for key in finding.cycle if not narrator.reduced.is_helper(key)]
        following = dict(zip(cycle, (*cycle[1:], *cycle[:1]), strict=True)) if len(cycle) > 1 else {}
        self._entries = Entries(finding, narrator, self._parts_in_order(), following)
        self._numbers = self._entries.numbers

    def rows(self) -> Iterator[Entry | Step]:
        """The entries, folded where there are many; then who is in a call that others have not come to."""
        yield from self._entries.rows()
        yield from collectives.absent_steps(self._finding, self._narrator)
        groups = shared_calls(self._finding, self._narrator) if self._finding.final_blockers else []
        several = [one for one in groups if len(one.inside) > 1 or one.absent or one.idle]
        yield from list(shared_call_steps(several, self._narrator, self._numbers))[:SHOWN_REMARKS]

    def behind(self) -> Iterator[Step]:
        """What is blocked behind a deadlock or hang, alike ones once; executions first, since they have lines."""
        keys = [key for key in (*self._finding.blocked_behind, *self._finding.polled_by) if key not in self._numbers]
        vertices = [
            vertex for vertex in self._narrator.vertices_of(keys) if not self._narrator.reduced.is_passed_on(vertex)
        ]
        executions = [vertex for vertex in vertices if vertex.kind == "execution"]
        executions.sort(key=lambda vertex: not self._narrator.reduced.is_in_users_code(vertex.key))
        parts = alike(executions)[:SHOWN_BEHIND]
        for part in parts:
            yield sentences.step_at(part.name, self._narrator.member(part.first), part.first)
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
        reduced = self._narrator.reduced
        ranks = self._of_ranks()
        described = {vertex.key for part in ranks for vertex in part.vertices}
        described |= collectives.described(self._finding, self._narrator)
        cycle = [self._narrator.vertices[key] for key in self._finding.cycle if not reduced.is_helper(key)]
        own = [vertex for vertex in cycle if not is_queued(vertex)] or cycle
        inside = described.union(self._finding.cycle)
        late = [vertex for vertex in late_for_barrier(self._finding, self._narrator) if vertex.key not in inside]
        parts = [*ranks, *(Part([vertex]) for vertex in own if vertex.key not in described), *alike(late)]
        return parts if len(parts) != 1 or len(self._finding.members) == 1 else [*parts, *self._partners(parts[0])]

    def _partners(self, only: Part) -> list[Part]:
        """The other members in the user's code, where one alone is in the cycle and does not wait for itself."""
        reduced = self._narrator.reduced
        if any(is_queued(self._narrator.vertices[key]) for key in self._finding.cycle):
            return []
        keys = {vertex.key for vertex in only.vertices}
        own = [key for key in self._finding.members if key not in keys and reduced.is_in_users_code(key)]
        return alike(self._narrator.vertices_of(own))

    def _of_ranks(self) -> list[Part]:
        """The calls on process groups with the ranks in them, then the ranks that are elsewhere."""
        ranks = ranks_in(self._finding, self._narrator)
        inside = [Part(*part) for part in collectives.parts(self._finding, self._narrator)]
        elsewhere = [Part([vertex], f"rank {rank}: {vertex.label}") for vertex, rank in ranks.elsewhere]
        return [*inside, *elsewhere] if inside else []

    def _of_chain(self) -> list[Part]:
        """The longest way from a waiter to the first final blocker, or to what can never be given."""
        finding, vertices = self._finding, self._narrator.vertices
        ends = [blocker.vertex for blocker in finding.final_blockers] or list(finding.members)
        waiters = [*finding.members, *finding.blocked_behind, *finding.helpers]
        path = longest_chain(vertices, waiters, ends[0], self._narrator.reduced.is_in_users_code) if ends else []
        if path and vertices[path[-1]].kind == "lifetime":
            path += [end for end in ends if end not in path and vertices[end].kind == "execution"][:1]
        shown = [vertex for vertex in map(vertices.__getitem__, path) if self._is_entry(vertex)]
        return [Part([vertex]) for vertex in shown]

    def _is_entry(self, vertex: Vertex) -> bool:
        is_helper = self._narrator.reduced.is_helper(vertex.key) and vertex.never is None
        return not (is_helper or vertex.waker_of or is_queued(vertex))

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
            yield from restart_steps(self._finding, self._narrator)
        elif self._finding.cycle:
            yield from self._other_members()

    def _other_ends(self) -> Iterator[Step]:
        """The final blockers that are not in the chain that is drawn."""
        ends = [blocker for blocker in self._finding.final_blockers if blocker.vertex not in self._numbers]
        shown = [blocker for blocker in ends if not self._narrator.vertices[blocker.vertex].waker_of]
        for blocker in shown[:SHOWN_ENDS]:
            step = self._narrator.step(blocker.vertex)
            yield replace(step, text=f"Final blocker: {step.text}")
        if len(shown) > SHOWN_ENDS:
            yield Step(text=f"{plural(len(shown) - SHOWN_ENDS, 'more final blocker')}")

    def _other_members(self) -> Iterator[Step]:
        """The members of a deadlock beside the cycle that is drawn, alike ones once."""
        inside = {*self._finding.cycle, *self._numbers, *collectives.described(self._finding, self._narrator)}
        reduced = self._narrator.reduced
        others = [key for key in self._finding.members if key not in inside and reduced.is_counted(key)]
        vertices = [vertex for vertex in self._narrator.vertices_of(others) if not is_queued(vertex)]
        own = alike([vertex for vertex in vertices if reduced.is_in_users_code(vertex.key)])
        for part in own[:SHOWN_ENDS]:
            yield sentences.step_at(f"Also in the deadlock: {part.name}", self._narrator.member(part.first), part.first)
        rest = len(vertices) - sum(len(part.vertices) for part in own[:SHOWN_ENDS])
        if rest:
            yield Step(text=f"{plural(rest, 'more member')} of the deadlock")
