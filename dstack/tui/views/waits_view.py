"""The Waits view: the tree of waits, and the details of the line under the cursor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from dstack.analysis.naming import sentences
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import SnapshotChanges, mark_of
from dstack.analysis.views.snapshot_diff import WaitChange
from dstack.analysis.views.wait_tree import Edge, WaitBranch, WaitTree
from dstack.model.diagnosis import Step, Vertex
from dstack.model.vertex_keys import Key
from dstack.report.finding import BETWEEN, FIRST, LAST, OUTSIDE, kind_in_words, titled
from dstack.report.rich_text import SafeText, location, place_of
from dstack.tui.views.base import STACK, OutlineView, SourceLocation, marked
from dstack.tui.widgets.outline import NO_RAIL, Detail, Line, Outline
from dstack.words import SHOWN, distinct, plural

STYLE_OF_EVIDENCE = {"exact": "", "inferred": "yellow", "assumed": "yellow"}
OPENED_ROOTS = 10
OPENED_BELOW = 20
"""The first roots are unfolded, and all entries below them if there are not more than this."""
SHOWN_IN_CYCLE = 4
OTHERS = "others"
GONE = "gone"


@dataclass(frozen=True, slots=True)
class WaitDetails:
    """What a snapshot says about the vertices and waits of its wait-for graph."""

    analysed: AnalysedSnapshot

    def vertex(self, key: Key) -> Vertex:
        """A vertex by its key."""
        return self.analysed.diagnosis.vertices[key]

    def member(self, vertex: Vertex) -> VertexDetails:
        """The process, place and ranks of a vertex."""
        return details_of(self.analysed.merged_index, vertex)

    def name(self, key: Key) -> str:
        """The name of a vertex as the target of waits."""
        return sentences.name(self.analysed.merged_index, self.vertex(key))

    def texts(self, branch: WaitBranch) -> Iterator[Text]:
        """All details of an entry: its sentence, line of code and wait; for a cycle its finding and fix."""
        if branch.role == "cycle":
            yield from self._cycle(branch)
            return
        step = self._sentence(self.vertex(branch.first))
        first = f"First of {branch.count:,}: " if branch.count > 1 else ""
        yield SafeText().append(first, "dim").append(step.text)
        if step.file is not None:
            source = f"  {step.source}" if step.source else ""
            yield SafeText().append(place_of(step.file, step.line), "cyan").append(source)
        if branch.edge is not None:
            yield from self._wait(branch.edge, branch)

    def _sentence(self, vertex: Vertex) -> Step:
        if vertex.waker_of is not None:
            return Step(text=f"dstack read every process, but found no thread that would end {vertex.waker_of}.")
        if vertex.kind == "unknown":
            return Step(text=f"The {describe(vertex)}.", vertex=vertex.key)
        return sentences.sentence(self.analysed.merged_index, self.analysed.diagnosis.vertices, vertex)

    def _cycle(self, branch: WaitBranch) -> Iterator[Text]:
        if branch.finding is None:
            yield SafeText("A cycle, but no deadlock: a wait in it has a timeout or can end in another way.")
            return
        finding = self.analysed.diagnosis.findings[branch.finding]
        yield SafeText(f"{titled(finding)}: {finding.summary}")
        if advice := finding.advice:
            yield SafeText().append(f"{advice.label}: ", "bold green").append(advice.text)

    def _wait(self, edge: Edge, branch: WaitBranch) -> Iterator[Text]:
        text = SafeText().append("Wait: ", "bold").append_text(wait_text(edge))
        text.append(", for ").append(self.name(edge.target))
        if edge.awaited > 1:
            text.append(f" and {plural(edge.awaited - 1, 'other')} like it")
        yield text.append(", in both samples" if edge.stands else ", in one sample")
        if edge.because:
            yield SafeText(f"{edge.evidence.capitalize()}: {edge.because}", "yellow")
        if edge.refs:
            more = f" and {len(edge.refs) - SHOWN:,} more" if len(edge.refs) > SHOWN else ""
            yield SafeText(f"Refs {', '.join(edge.refs[:SHOWN])}{more}", "dim")
        if branch.place != "here":
            yield SafeText("Its own entry, with its waiters, is elsewhere in this view: Enter goes there.", "italic")

    def location(self, branch: WaitBranch) -> SourceLocation | None:
        """The line of code of the entry's execution."""
        found = self.member(self.vertex(branch.first))
        return (found.file, found.line) if found.file is not None and found.line is not None else None

    def as_text(self, branch: WaitBranch) -> str:
        """The details as plain text with task ids, for the clipboard."""
        lines = [text.plain for text in self.texts(branch)]
        tasks = [self.vertex(key).task_id for key in branch.vertices[:SHOWN]]
        return "\n".join([*lines, *(f"Task {task_id}" for task_id in tasks if task_id)])


def wait_text(edge: Edge) -> Text:
    """``ray.get · 3 min · exact · ref 1a2b3c4d``."""
    text = SafeText()
    for number, word in enumerate(edge.words):
        style = STYLE_OF_EVIDENCE[edge.evidence] if word == edge.evidence else "magenta" if not number else ""
        text.append(" · " if number else "", "dim").append(word, style)
    return text


@dataclass(frozen=True, slots=True)
class WaitLines:
    """The lines of one snapshot's tree."""

    analysed: AnalysedSnapshot
    tree: WaitTree
    details: WaitDetails
    changes: SnapshotChanges | None = None

    def lines(self) -> list[Line]:
        """The roots of the tree, then one line with all waits that are gone below it."""
        gone = self.changes.gone_waits if self.changes else ()
        if not gone:
            return self.roots()
        text = marked("gone", SafeText(plural(len(gone), "wait")), in_words=True)
        return [*self.roots(), Line(GONE, text, partial(_gone_lines, gone))]

    def roots(self) -> list[Line]:
        """The roots that belong to findings, then one line with all others below it."""
        in_findings = [root for root in self.tree.roots if root.finding is not None]
        others = [root for root in self.tree.roots if root.finding is None]
        if not in_findings or not others:
            return self._tops(self.tree.roots)
        waiting = sum(root.below for root in others)
        text = SafeText().append("Waits in no finding", "bold").append(f"  {plural(waiting, 'waiter')}")
        return [*self._tops(in_findings), Line(OTHERS, text, partial(self._children, others, False))]

    def _tops(self, roots: Sequence[WaitBranch]) -> list[Line]:
        return self._distinct([self.line(root, is_open=at < OPENED_ROOTS) for at, root in enumerate(roots)])

    def path_to(self, vertex: Key) -> list[str]:
        """The keys of the lines from the root down to a vertex; empty if it is not in this view."""
        path = self.tree.way_to(vertex)
        keys = [branch.key for branch in path]
        has_findings = any(root.finding is not None for root in self.tree.roots)
        return [OTHERS, *keys] if path and path[0].finding is None and has_findings else keys

    def line(self, branch: WaitBranch, *, is_open: bool, rail: tuple[str, str] = NO_RAIL) -> Line:
        """One entry, with its waiters, made when it is unfolded."""
        opens = is_open and branch.role != "each" and branch.below <= OPENED_BELOW
        is_single = len(branch.vertices) == 1
        return Line(
            key=branch.key,
            text=marked(mark_of(branch.vertices, self.changes.waits) if self.changes else None, self._text(branch)),
            children=partial(self._below, branch, opens) if branch.expands else (),
            is_open=(opens and (branch.below > 0 or branch.role == "end")) or (is_open and branch.role == "cycle"),
            data=branch,
            search_text=self._search_text(branch),
            terms=self._member(branch).ranks.terms if is_single else frozenset(),
            rail=rail,
        )

    def _below(self, branch: WaitBranch, is_open: bool) -> list[Line]:
        below = self.tree.children(branch)
        if branch.role == "cycle":
            rails = cycle_rails(len(below))
            return [self.line(one, is_open=is_open, rail=rail) for one, rail in zip(below, rails, strict=True)]
        return self._children(below, is_open)

    def _children(self, branches: Sequence[WaitBranch], is_open: bool) -> list[Line]:
        return self._distinct([self.line(branch, is_open=is_open) for branch in branches])

    def _distinct(self, lines: Sequence[Line]) -> list[Line]:
        """The lines; those that read the same also have what distinguishes them: task, coroutine, thread."""
        ids = [self._member(line.data).ids if isinstance(line.data, WaitBranch) else () for line in lines]
        more = distinct([line.text.plain for line in lines], ids)
        return [
            replace(line, text=line.text.copy().append(f"  {', '.join(one)}", "dim")) if one else line
            for line, one in zip(lines, more, strict=True)
        ]

    def _search_text(self, branch: WaitBranch) -> str:
        """Further words for the filter: place, line of code, ids."""
        found = self._member(branch)
        place = f"{found.file}:{found.line} {found.function}" if found.file else ""
        refs = " ".join(branch.edge.refs[:SHOWN]) if branch.edge else ""
        return f"{found.place} {place} {self.details.vertex(branch.first).task_id or ''} {refs}"

    def _member(self, branch: WaitBranch) -> VertexDetails:
        return self.details.member(self.details.vertex(branch.first))

    # The text of an entry

    def _text(self, branch: WaitBranch) -> Text:
        match branch.role:
            case "cycle":
                return self._cycle(branch)
            case "end":
                return self._end(branch)
            case "each":
                return SafeText(f"all {branch.count:,}, one by one", "dim")
            case "one":
                vertex = self.details.vertex(branch.first)
                return SafeText(describe(vertex)).append(self._place(vertex), "dim")
        return self._waiter(branch)

    def _cycle(self, branch: WaitBranch) -> Text:
        labels = [self._label(key) for key in branch.vertices]
        shown = labels if len(labels) <= SHOWN_IN_CYCLE else [*labels[: SHOWN_IN_CYCLE - 1], "…"]
        text = SafeText().append("↺ ", "bold").append(self._finding(branch), "bold red")
        text.append(f"cycle of {len(labels):,}")
        text.append(f", {branch.below:,} blocked behind it" if branch.below else "")
        return text.append(f": {' → '.join([*shown, labels[0]])}", "bold")

    def _finding(self, branch: WaitBranch) -> str:
        if branch.finding is None:
            return ""
        finding = self.analysed.diagnosis.findings[branch.finding]
        return f"{kind_in_words(finding.kind)}, {'confirmed' if finding.confirmed else 'suspected'}: "

    def _label(self, key: Key) -> str:
        """The label of a vertex, marked as pending if it does not run yet."""
        vertex = self.details.vertex(key)
        is_pending = vertex.is_counted and vertex.kind == "task" and vertex.worker_id is None
        return f"{describe(vertex)} (pending)" if is_pending else describe(vertex)

    def _end(self, branch: WaitBranch) -> Text:
        vertex, found = self.details.vertex(branch.first), self._member(branch)
        text = _count(branch).append(self.details.name(branch.first), "bold")
        waiting = self._waiters_of(branch)
        text.append(f"  ← {plural(waiting, 'waiter')}" if waiting else "", "bold")
        text.append(f"  {_doing(vertex, found)}", "red" if vertex.never else "")
        text.append(f"  {location(found.file, found.line)}" if found.file else "", "cyan")
        return text.append(self._place(vertex, branch), "dim")

    def _waiters_of(self, branch: WaitBranch) -> int:
        """The number of waiters of an end, with those whose entries are elsewhere if a finding counted them."""
        if branch.count > 1 or branch.finding is None:
            return branch.below
        blockers = self.analysed.diagnosis.findings[branch.finding].final_blockers
        return next((one.waiters_total for one in blockers if one.vertex == branch.first), branch.below)

    def _waiter(self, branch: WaitBranch) -> Text:
        assert branch.edge is not None
        text = _count(branch).append(self._label(branch.first), "bold" if branch.place == "here" else "dim")
        place = self._place(self.details.vertex(branch.first), branch)
        if branch.role == "ring":
            text.append(place, "dim").append(f"  waits for {branch.follows}", "bold")
        text.append(f"  {branch.below:,} blocked behind" if branch.below else "", "bold")
        if branch.place != "here":
            text.append("  (see above)" if branch.place == "above" else "  (see its own entry)", "italic")
        text.append("  ").append_text(wait_text(branch.edge))
        return text if branch.role == "ring" else text.append(place, "dim")

    def _place(self, vertex: Vertex, branch: WaitBranch | None = None) -> str:
        place = self.details.member(vertex).short_place
        if branch is not None and branch.count > 1:
            found = self.analysed.stacks.rank_sets.rank_set_of(map(self.details.vertex, branch.vertices))
            place = f"{found.words}, first: {place}" if found else f"first: {place}" if place else ""
        return f"  {place}" if place else ""


def _gone_lines(gone: Sequence[WaitChange]) -> list[Line]:
    """One line for each kind of wait that is gone, with their number."""
    counts = Counter((wait.label, wait.kind) for wait in gone)
    return [
        Line(
            f"{GONE}/{label}/{kind}",
            marked("gone", SafeText(f"{count:,} × " if count > 1 else "").append(f"{label}  ").append(kind, "magenta")),
        )
        for (label, kind), count in counts.most_common()
    ]


def _doing(vertex: Vertex, found: VertexDetails) -> str:
    """What the end of a chain does, in one or two words."""
    if vertex.never is not None:
        return in_words(vertex.never)
    if vertex.kind != "execution" or vertex.wait is not None:
        return ""
    return sentences.activity(vertex, found)


def cycle_rails(count: int) -> list[tuple[str, str]]:
    """The bracket beside the entries of a cycle, from the last entry back to the first."""
    if count == 1:
        return [(FIRST, OUTSIDE)]
    return [(FIRST, BETWEEN), *[(BETWEEN, BETWEEN)] * (count - 2), (LAST, OUTSIDE)]


def _count(branch: WaitBranch) -> SafeText:
    """The number of an entry in its cycle, or the number of similar waiters in one line."""
    count = f"{branch.number}  " if branch.number else f"{branch.count:,} × " if branch.count > 1 else ""
    return SafeText().append(count, "bold")


class WaitsView(OutlineView):
    """The wait-for graph. At the top are cycles and the ends of open chains; below each are its waiters.

    The bracket beside a cycle leads from its last entry back to its first. Waiters that are alike share one line. Each
    waiter has one entry of its own; where it is only named, Enter goes to that entry. Each wait shows its call, ref,
    duration and evidence. Exact: read from the process. Inferred: follows from what was read. Assumed: not proven.
    Since the snapshot before, a wait with + is new, and one with ~ was for something else or in another call; of
    several in one line some are. Those that are gone are listed last.
    """

    DEFAULT_CSS = "WaitsView Outline { scrollbar-size-horizontal: 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        STACK,
        Binding("t", "target", "Target", id="own.target", tooltip="Go to what it waits for"),
        Binding(
            "T",
            "target_stack",
            "Target's stack",
            show=False,
            id="own.target-stack",
            tooltip="Go to the stack of what it waits for",
        ),
        Binding("w", "waiter", "Waiter", show=False, id="own.waiter", tooltip="Go to the waiter's own entry"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: WaitLines | None = None

    def compose_body(self) -> ComposeResult:
        yield Outline(empty="No waits.")
        yield Detail()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the tree; cursor and folds stay."""
        tree = WaitTree(analysed.merged_index, analysed.diagnosis)
        self._lines = WaitLines(analysed, tree, WaitDetails(analysed), self.changes)
        self._outline.show(self._lines.lines())
        self._show_details()

    def _choose(self, outline: Outline, line: Line) -> None:
        """Go to the waiter's own entry; else fold or unfold the line; else go to the stack."""
        branch = self._branch
        if branch is not None and branch.place != "here":
            self.reveal(branch.first)
        else:
            super()._choose(outline, line)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        branch = self._branch
        if action in ("target", "target_stack"):
            return self._target is not None
        if action == "waiter":
            return branch is not None and branch.place != "here"
        return super().check_action(action, parameters)

    @property
    def stack_vertex(self) -> Key | None:
        """The waiter; none for a cycle, whose entries are below it."""
        return self._branch.first if self._branch and self._branch.role != "cycle" else None

    def action_target(self) -> None:
        if self._target is not None:
            self.reveal(self._target)

    def action_target_stack(self) -> None:
        if self._target is not None:
            self.host.go_to("stacks", self._target)

    def action_waiter(self) -> None:
        if self._branch is not None:
            self.reveal(self._branch.first)

    def to_copy(self) -> str | None:
        """The details of the line."""
        return self._lines.details.as_text(self._branch) if self._lines and self._branch else None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the execution."""
        return self._lines.details.location(self._branch) if self._lines and self._branch else None

    def _path_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.path_to(vertex) if self._lines else ()

    @property
    def _branch(self) -> WaitBranch | None:
        return self._data if isinstance(self._data, WaitBranch) else None

    @property
    def _target(self) -> Key | None:
        return self._branch.edge.target if self._branch and self._branch.edge else None

    def _details(self) -> Iterable[Text]:
        return self._lines.details.texts(self._branch) if self._lines and self._branch else ()
