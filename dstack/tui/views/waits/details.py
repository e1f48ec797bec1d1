"""The details of an entry of the Waits view: the texts of the pane below, and the line of code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.text import Text

from dstack.analysis.naming import sentences
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.wait_tree import Edge, WaitBranch
from dstack.diagnosis import Step, Vertex
from dstack.report.finding import titled
from dstack.report.paths import short_path
from dstack.report.safe_text import SafeText
from dstack.tui.views.base import SourceLocation
from dstack.vertex_keys import Key
from dstack.words import plural

SHOWN_REFS = 3
STYLE_OF_EVIDENCE = {"exact": "", "inferred": "yellow", "assumed": "yellow"}


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
        if branch.role == "circle":
            yield from self._cycle(branch)
            return
        step = self._sentence(self.vertex(branch.first))
        first = f"First of {branch.count:,}: " if branch.count > 1 else ""
        yield SafeText().append(first, "dim").append(step.text)
        if step.file is not None:
            source = f"  {step.source}" if step.source else ""
            yield SafeText().append(f"{short_path(step.file)}:{step.line}", "cyan").append(source)
        if branch.edge is not None:
            yield from self._wait(branch.edge, branch)

    def _sentence(self, vertex: Vertex) -> Step:
        if vertex.waker_of is not None:
            return Step(text=f"dstack read every process, but found no thread that would end {vertex.waker_of}.")
        if vertex.kind == "unknown":
            return Step(text=f"The {vertex.label}.", vertex=vertex.key)
        return sentences.sentence(self.analysed.merged_index, self.analysed.diagnosis.vertices, vertex)

    def _cycle(self, branch: WaitBranch) -> Iterator[Text]:
        if branch.finding is None:
            yield SafeText("A cycle, but no deadlock: a wait in it has a timeout or can end in another way.")
            return
        finding = self.analysed.diagnosis.findings[branch.finding]
        yield SafeText(f"{titled(finding)}: {finding.summary}")
        yield SafeText().append("Fix: ", "bold green").append(finding.advice)

    def _wait(self, edge: Edge, branch: WaitBranch) -> Iterator[Text]:
        text = SafeText().append("Wait: ", "bold").append_text(wait_text(edge))
        text.append(", for ").append(self.name(edge.target))
        if edge.awaited > 1:
            text.append(f" and {plural(edge.awaited - 1, 'other')} like it")
        yield text.append(", in both samples" if edge.stands else ", in one sample")
        if edge.because:
            yield SafeText(f"{edge.evidence.capitalize()}: {edge.because}", "yellow")
        if edge.refs:
            more = f" and {len(edge.refs) - SHOWN_REFS:,} more" if len(edge.refs) > SHOWN_REFS else ""
            yield SafeText(f"Refs {', '.join(edge.refs[:SHOWN_REFS])}{more}", "dim")
        if branch.place != "here":
            yield SafeText("Its own entry, with its waiters, is elsewhere in this view: Enter goes there.", "italic")

    def location(self, branch: WaitBranch) -> SourceLocation | None:
        """The line of code of the entry's execution."""
        found = self.member(self.vertex(branch.first))
        return (found.file, found.line) if found.file is not None and found.line is not None else None

    def as_text(self, branch: WaitBranch) -> str:
        """The details as plain text with task ids, for the clipboard."""
        lines = [text.plain for text in self.texts(branch)]
        tasks = [self.vertex(key).task_id for key in branch.vertices[:SHOWN_REFS]]
        return "\n".join([*lines, *(f"Task {task_id}" for task_id in tasks if task_id)])


def wait_text(edge: Edge) -> Text:
    """``ray.get · 3 min · exact · ref 1a2b3c4d``."""
    text = SafeText()
    for number, word in enumerate(edge.words):
        style = STYLE_OF_EVIDENCE[edge.evidence] if word == edge.evidence else "magenta" if not number else ""
        text.append(" · " if number else "", "dim").append(word, style)
    return text
