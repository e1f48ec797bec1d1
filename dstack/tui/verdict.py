"""What is wrong: findings, worst first, each told in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult

from dstack.analysis.members import member
from dstack.diagnosis import Finding, Step
from dstack.report.failures import failure_in_words
from dstack.report.finding import titled
from dstack.report.headline import STYLES, headline
from dstack.report.paths import short_path
from dstack.report.safe_text import SafeText
from dstack.tui.outline import Line, Outline
from dstack.tui.outline_view import OutlineView
from dstack.tui.source import Look
from dstack.tui.view import Place
from dstack.vertex_keys import Key
from dstack.visible import visible

BULLET = "• "
SHOWN_FAILURES = 100
STYLE_OF_KIND: dict[str, str] = {
    **{str(kind): style for kind, style in STYLES.items()},
    "orphaned": "bold red",
    "infeasible": "bold red",
    "starved": "bold yellow",
}


class VerdictView(OutlineView):
    """What is wrong, first: the findings, each with who waits for whom and where, and a way out.

    Enter on a sentence goes to whoever it is about among the waits.
    """

    def compose_body(self) -> ComposeResult:
        """One outline."""
        yield Outline(empty="No findings.")

    def show(self, look: Look) -> None:
        """Shows the findings of the snapshot."""
        self._outline.show(list(lines_of(look)))

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Goes to whom the sentence is about, or folds the finding."""
        if isinstance(event.line.data, Told) and event.line.data.vertex:
            self.application.go_to("waits", event.line.data.vertex)
        else:
            event.outline.toggle(event.line)

    def to_copy(self) -> str | None:
        """The whole finding."""
        told = self._data
        return finding_in_words(told.finding) if isinstance(told, Told) and told.finding else None

    def to_open(self) -> Place | None:
        """The line of code that the sentence is about."""
        return self._data.place if isinstance(self._data, Told) else None


class Told:
    """What a line of this view is about."""

    def __init__(self, finding: Finding | None = None, vertex: Key | None = None, place: Place | None = None) -> None:
        self.finding = finding
        self.vertex = vertex
        self.place = place


def lines_of(look: Look) -> Iterator[Line]:
    """The findings, then the failures."""
    if not look.diagnosis.findings:
        yield Line("none", SafeText(f"No findings: {headline(look.diagnosis)}."), hang=0)
    for number, finding in enumerate(look.diagnosis.findings, 1):
        yield _finding(look, number, finding, is_open=number <= 3)
    failures = look.diagnosis.coverage.failures
    if failures:
        children = [
            Line(f"failure/{number}", SafeText(failure_in_words(look.snapshot, failure)), hang=0)
            for number, failure in enumerate(failures[:SHOWN_FAILURES])
        ]
        if len(failures) > SHOWN_FAILURES:
            children.append(Line("failure/more", SafeText(f"and {len(failures) - SHOWN_FAILURES:,} more", "dim")))
        yield Line("failures", SafeText(f"Not seen: {len(failures):,}", "bold yellow"), children, is_open=True)


def _finding(look: Look, number: int, finding: Finding, *, is_open: bool) -> Line:
    told = Told(finding, _subject(finding))
    key = f"{finding.kind}/{number}"
    style = STYLE_OF_KIND.get(finding.kind, "bold cyan")
    title = SafeText(f"{number}. {titled(finding)}", style)
    children = [*_said(key, "summary", finding.summary, told, "bold")]
    for at, step in enumerate(finding.explanation):
        children += _step(look, f"{key}/{at}", finding, step)
    children += _said(key, "impact", impact(finding), Told(finding))
    children += _said(key, "advice", f"Way out: {finding.advice}", Told(finding), "green")
    return Line(key, title, children, is_open=is_open, data=Told(finding), also=finding.summary, hang=3)


def _subject(finding: Finding) -> Key | None:
    """The vertex that the summary is about: the first final blocker, else the first member."""
    vertices = (*(blocker.vertex for blocker in finding.final_blockers), *finding.members)
    return next(iter(vertices), None)


def _step(look: Look, key: str, finding: Finding, step: Step) -> Iterator[Line]:
    place = (step.file, step.line) if step.file is not None and step.line is not None else None
    told = Told(finding, step.vertex, place)
    vertex = look.diagnosis.vertices.get(step.vertex) if step.vertex else None
    terms = member(look.observed, vertex).ranks.terms if vertex else frozenset()
    yield from _said(key, "text", f"{BULLET}{step.text}", told, terms=terms)
    if place:
        text = SafeText("    ").append(f"{short_path(place[0])}:{place[1]}", "cyan")
        yield Line(f"{key}/place", text.append(f"  {step.source}" if step.source else ""), data=told, terms=terms)


def _said(
    key: str, what: str, text: str, told: Told, style: str = "", terms: frozenset[str] = frozenset()
) -> Iterator[Line]:
    """A sentence, or nothing for an empty one."""
    if text:
        hang = len(BULLET) if text.startswith(BULLET) else 0
        yield Line(f"{key}/{what}", SafeText(text, style), data=told, terms=terms, hang=hang)


def impact(finding: Finding) -> str:
    """How many wait because of it."""
    if not finding.waiters_total:
        return ""
    direct = f", {finding.waiters_direct:,} of them directly" if finding.waiters_direct != finding.waiters_total else ""
    jobs = f" in {len(finding.jobs)} jobs" if len(finding.jobs) > 1 else ""
    return f"Impact: {finding.waiters_total:,} wait because of it{direct}{jobs}."


def finding_in_words(finding: Finding) -> str:
    """A finding as plain text, for a message to somebody."""
    lines = [f"{titled(finding)}: {finding.summary}"]
    for step in finding.explanation:
        lines.append(f"- {step.text}")
        if step.file is not None:
            lines.append(f"    {step.file}:{step.line}  {step.source or ''}".rstrip())
    return "\n".join(map(visible, [*lines, f"Way out: {finding.advice}"]))
