"""The tree of waits as lines of an outline, and all that is to be said of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from dstack.analysis.naming import sentences
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.views.wait_tree import Branch, Edge, WaitTree
from dstack.diagnosis import Step, Vertex
from dstack.report.finding import BETWEEN, FIRST, LAST, OUTSIDE, titled
from dstack.report.paths import location, short_path
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.widgets.outline_line import NO_RAIL, Line
from dstack.vertex_keys import Key
from dstack.words import plural

OPENED_ROOTS = 10
OPENED_BELOW = 20
"""The first so many roots are unfolded, and all below them where no more than so many stand there."""
SHOWN_RING = 4
SHOWN_REFS = 3
OTHERS = "others"
STYLE_OF_EVIDENCE = {"exact": "", "inferred": "yellow", "assumed": "yellow"}


@dataclass(frozen=True)
class Lines:
    """The lines of one look's tree."""

    look: Look
    tree: WaitTree

    def roots(self) -> list[Line]:
        """The tops about findings, then all others below one line of their own."""
        told = [top for top in self.tree.roots if top.finding is not None]
        others = [top for top in self.tree.roots if top.finding is None]
        lines = [self.line(top, is_open=number < OPENED_ROOTS) for number, top in enumerate(told)]
        if not others:
            return lines
        if not told:
            return [self.line(top, is_open=number < OPENED_ROOTS) for number, top in enumerate(others)]
        waiting = sum(top.below for top in others)
        text = SafeText().append("Waits in no finding", "bold").append(f"  {plural(waiting, 'waiter')}")
        return [*lines, Line(OTHERS, text, partial(self._children, others, False))]

    def way_to(self, vertex: Key) -> list[str]:
        """The keys of the lines down to where a vertex stands; none where it stands nowhere."""
        way = self.tree.way_to(vertex)
        keys = [branch.key for branch in way]
        has_others = any(top.finding is not None for top in self.tree.roots)
        return [OTHERS, *keys] if way and way[0].finding is None and has_others else keys

    def line(self, branch: Branch, *, is_open: bool, rail: tuple[str, str] = NO_RAIL) -> Line:
        """One branch, with those below it, made when it is unfolded."""
        opens = is_open and branch.role != "each" and branch.below <= OPENED_BELOW
        return Line(
            key=branch.key,
            text=self._text(branch),
            children=partial(self._below, branch, opens) if branch.expands else (),
            is_open=(opens and (branch.below > 0 or branch.role == "end")) or (is_open and branch.role == "circle"),
            data=branch,
            also=self._also(branch),
            terms=self.member(self.vertex(branch.first)).ranks.terms if len(branch.vertices) == 1 else frozenset(),
            rail=rail,
        )

    def _below(self, branch: Branch, is_open: bool) -> list[Line]:
        below = self.tree.children(branch)
        if branch.role == "circle":
            rails = cycle_rails(len(below))
            return [self.line(one, is_open=is_open, rail=rail) for one, rail in zip(below, rails, strict=True)]
        return self._children(below, is_open)

    def _children(self, branches: Sequence[Branch], is_open: bool) -> list[Line]:
        return [self.line(branch, is_open=is_open) for branch in branches]

    def _also(self, branch: Branch) -> str:
        """What a filter finds besides: where it runs, its line, its ids."""
        vertex = self.vertex(branch.first)
        who = self.member(vertex)
        place = f"{who.file}:{who.line} {who.function}" if who.file else ""
        refs = " ".join(branch.edge.refs[:SHOWN_REFS]) if branch.edge else ""
        return f"{who.place} {place} {vertex.task_id or ''} {refs}"

    def vertex(self, key: Key) -> Vertex:
        """A vertex by its key."""
        return self.look.diagnosis.vertices[key]

    def member(self, vertex: Vertex) -> VertexDetails:
        """Who it is, and where."""
        return details_of(self.look.index, vertex)

    def name(self, key: Key) -> str:
        """What a vertex is called where others wait for it."""
        return sentences.name(self.look.index, self.vertex(key))

    # One line

    def _text(self, branch: Branch) -> Text:
        match branch.role:
            case "circle":
                return self._circle(branch)
            case "end":
                return self._end(branch)
            case "each":
                return SafeText(f"all {branch.count:,}, one by one", "dim")
            case "one":
                vertex = self.vertex(branch.first)
                return SafeText(vertex.label).append(self._place(vertex), "dim")
        return self._waiter(branch)

    def _circle(self, branch: Branch) -> Text:
        ring = [self._label(key) for key in branch.vertices]
        shown = ring if len(ring) <= SHOWN_RING else [*ring[: SHOWN_RING - 1], "…"]
        text = (
            SafeText().append("↺ ", "bold").append(self._finding(branch), "bold red").append(f"cycle of {len(ring):,}")
        )
        text.append(f", {branch.below:,} blocked behind it" if branch.below else "")
        return text.append(f": {' → '.join([*shown, ring[0]])}", "bold")

    def _finding(self, branch: Branch) -> str:
        if branch.finding is None:
            return ""
        finding = self.look.diagnosis.findings[branch.finding]
        return f"{finding.kind}, {'confirmed' if finding.confirmed else 'suspected'}: "

    def _label(self, key: Key) -> str:
        """A vertex by name; what does not run yet is said to be pending."""
        vertex = self.vertex(key)
        is_pending = vertex.is_counted and vertex.kind == "task" and vertex.worker_id is None
        return f"{vertex.label} (pending)" if is_pending else vertex.label

    def _end(self, branch: Branch) -> Text:
        vertex = self.vertex(branch.first)
        who = self.member(vertex)
        text = _count(branch).append(self.name(branch.first), "bold")
        waiting = self._waiting_for(branch)
        text.append(f"  ← {plural(waiting, 'waiter')}" if waiting else "", "bold")
        text.append(f"  {_doing(vertex, who)}", "red" if vertex.never else "")
        text.append(f"  {location(who.file, who.line)}" if who.file else "", "cyan")
        return text.append(self._place(vertex, branch), "dim")

    def _waiting_for(self, branch: Branch) -> int:
        """How many wait for an end in all, those among them that stand elsewhere, too, where that was counted."""
        if branch.count > 1 or branch.finding is None:
            return branch.below
        blockers = self.look.diagnosis.findings[branch.finding].final_blockers
        return next((one.waiters_total for one in blockers if one.vertex == branch.first), branch.below)

    def _waiter(self, branch: Branch) -> Text:
        assert branch.edge is not None
        text = _count(branch).append(self._label(branch.first), "bold" if branch.place == "here" else "dim")
        place = self._place(self.vertex(branch.first), branch)
        if branch.role == "ring":
            text.append(place, "dim").append(f"  waits for {branch.follows}", "bold")
        text.append(f"  {branch.below:,} blocked behind" if branch.below else "", "bold")
        if branch.place != "here":
            text.append("  (see above)" if branch.place == "above" else "  (see its own entry)", "italic")
        text.append("  ").append_text(_edge(branch.edge))
        return text if branch.role == "ring" else text.append(place, "dim")

    def _place(self, vertex: Vertex, branch: Branch | None = None) -> str:
        where = self.member(vertex).short_place
        if branch is not None and branch.count > 1:
            found = self.look.stacks.teams.slice_of(map(self.vertex, branch.vertices))
            where = f"{found.words}, first: {where}" if found else f"first: {where}" if where else ""
        return f"  {where}" if where else ""

    # All of it

    def told(self, branch: Branch) -> Iterator[Text]:
        """All about a branch: the sentence, the line of code, the wait, and where its ends are."""
        if branch.role == "circle":
            yield from self._told_circle(branch)
            return
        vertex = self.vertex(branch.first)
        step = self._sentence(vertex)
        first = f"First of {branch.count:,}: " if branch.count > 1 else ""
        yield SafeText().append(first, "dim").append(step.text)
        if step.file is not None:
            source = f"  {step.source}" if step.source else ""
            yield SafeText().append(f"{short_path(step.file)}:{step.line}", "cyan").append(source)
        if branch.edge is not None:
            yield from self._told_edge(branch.edge, branch)

    def _sentence(self, vertex: Vertex) -> Step:
        if vertex.waker_of is not None:
            return Step(text=f"dstack read every process, but found no thread that would end {vertex.waker_of}.")
        if vertex.kind == "unknown":
            return Step(text=f"The {vertex.label}.", vertex=vertex.key)
        return sentences.sentence(self.look.index, self.look.diagnosis.vertices, vertex)

    def _told_circle(self, branch: Branch) -> Iterator[Text]:
        if branch.finding is not None:
            finding = self.look.diagnosis.findings[branch.finding]
            yield SafeText(f"{titled(finding)}: {finding.summary}")
            yield SafeText().append("Fix: ", "bold green").append(finding.advice)
        else:
            yield SafeText("A cycle, but no deadlock: a wait in it has a timeout or can end in another way.")

    def _told_edge(self, edge: Edge, branch: Branch) -> Iterator[Text]:
        text = (
            SafeText().append("Wait: ", "bold").append_text(_edge(edge)).append(", for ").append(self.name(edge.target))
        )
        if edge.awaited > 1:
            text.append(f" and {plural(edge.awaited - 1, 'other')} like it")
        text.append(", in both samples" if edge.stands else ", in one sample")
        yield text
        if edge.because:
            yield SafeText(f"{edge.evidence.capitalize()}: {edge.because}", "yellow")
        if edge.refs:
            more = f" and {len(edge.refs) - SHOWN_REFS:,} more" if len(edge.refs) > SHOWN_REFS else ""
            yield SafeText(f"Refs {', '.join(edge.refs[:SHOWN_REFS])}{more}", "dim")
        if branch.place != "here":
            yield SafeText("Its own entry, with its waiters, is elsewhere in this view: Enter goes there.", "italic")

    def code(self, branch: Branch) -> Place | None:
        """The line of code it is at."""
        who = self.member(self.vertex(branch.first))
        return (who.file, who.line) if who.file is not None and who.line is not None else None

    def in_words(self, branch: Branch) -> str:
        """The same as plain text, with ids, to be copied."""
        lines = [text.plain for text in self.told(branch)]
        tasks = [self.vertex(key).task_id for key in branch.vertices[:SHOWN_REFS]]
        return "\n".join([*lines, *(f"Task {task_id}" for task_id in tasks if task_id)])


def _doing(vertex: Vertex, who: VertexDetails) -> str:
    """What the end of a chain does, in a word or two."""
    if vertex.never is not None:
        return vertex.never
    if vertex.kind != "execution" or vertex.wait is not None:
        return ""
    return sentences.activity(vertex, who)


def cycle_rails(count: int) -> list[tuple[str, str]]:
    """The bracket beside the members of a cycle: it leads from the last one back to the first."""
    if count == 1:
        return [(FIRST, OUTSIDE)]
    return [(FIRST, BETWEEN), *[(BETWEEN, BETWEEN)] * (count - 2), (LAST, OUTSIDE)]


def _count(branch: Branch) -> SafeText:
    """The number of a member of a cycle, or how many alike a line stands for."""
    count = f"{branch.number}  " if branch.number else f"{branch.count:,} × " if branch.count > 1 else ""
    return SafeText().append(count, "bold")


def _edge(edge: Edge) -> Text:
    """``ray.get · 3 min · exact · ref 1a2b3c4d``."""
    text = SafeText()
    for number, word in enumerate(edge.words):
        text.append(" · " if number else "", "dim")
        text.append(
            word, STYLE_OF_EVIDENCE[edge.evidence] if word == edge.evidence else "magenta" if not number else ""
        )
    return text
