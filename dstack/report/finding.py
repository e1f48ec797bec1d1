"""The one renderer of findings, for the report, the TUI and the pytest plugin: diagram, what is blocked behind it, fix.

It makes rows, which the front ends print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dstack.analysis.findings import is_stuck, verdict_of
from dstack.analysis.naming import names
from dstack.model.diagnosis import Diagram, Entry, Finding, FindingKind, Step
from dstack.report.rich_text import Row, SafeText, place_of
from dstack.words import capitalised, duration, listed, word

FIRST, BETWEEN, LAST, OUTSIDE = "┌▶ ", "│  ", "└─ ", "   "
"""What a row of a cycle begins with: the bracket leads from its last entry back to its first."""
SHORT_REMARK = 60


def certainty(finding: Finding) -> str:
    """``confirmed by 2 samples``, or why it is only suspected; empty for kinds that claim nothing for good."""
    if not is_stuck(finding):
        return ""
    if finding.confirmed:
        return "confirmed by 2 samples"
    if finding.assumed:
        return f"suspected: the same in 2 samples, assuming that {listed(finding.assumed)}"
    return "suspected: not confirmed by a second sample"


def kind_in_words(kind: FindingKind) -> str:
    """The kind, or ``hang`` for each kind of hang."""
    return "hang" if verdict_of(kind) == "hang" else kind


def titled(finding: Finding) -> str:
    """``deadlock, confirmed by 2 samples``."""
    return ", ".join(part for part in (kind_in_words(finding.kind), certainty(finding)) if part)


def status(finding: Finding) -> str:
    """How sure the finding is, how long it has lasted, how much is blocked behind it and why it is not proven."""
    sure = "suspected: the same in 2 samples" if finding.assumed and not finding.confirmed else certainty(finding)
    parts = (sure, standing(finding), _impact(finding), finding.doubt)
    return "; ".join(part for part in parts if part)


def status_sentence(finding: Finding) -> str:
    """The same as a sentence; empty where there is nothing to say."""
    return f"{capitalised(text)}." if (text := status(finding)) else ""


def standing(finding: Finding) -> str:
    """``stuck since 03:53:24 (1 min 37 s)``; of a stall also when its jobs last finished a task."""
    since = names.standing(finding.since)
    if is_stuck(finding):
        return f"stuck {since}" if finding.since and finding.since.began_at is not None else since
    if finding.kind != "stalled":
        return ""
    progress = finding.progress
    if progress is None or progress.idle_s is None:
        return since
    ended = f"the last task finished {duration(progress.idle_s)} ago"
    return "; ".join(part for part in (since, ended) if part)


def _impact(finding: Finding) -> str:
    """``3 more are blocked behind it``."""
    count = finding.waiters_total
    if not is_stuck(finding) or not count:
        return ""
    return f"{count:,} more {word(count, 'is', 'are')} blocked behind it"


def picture(finding: Finding) -> Iterator[Row]:
    """The diagram and what is blocked behind it."""
    yield from diagram_rows(finding.diagram)
    yield from behind_rows(finding.diagram.behind)


def diagram_rows(diagram: Diagram) -> Iterator[Row]:
    """The numbered entries with their lines of code and waits; of a cycle in a bracket."""
    last = max((at for at, row in enumerate(diagram.rows) if isinstance(row, Entry)), default=-1)
    for at, row in enumerate(diagram.rows):
        made = list(_entry_rows(row) if isinstance(row, Entry) else remark_rows(row))
        if diagram.is_cycle and at <= last:
            yield from _bracketed(made, is_first=at == 0, is_last=at == last)
        else:
            yield from (replace(one, lead=OUTSIDE + one.lead, follow=OUTSIDE + one.follow) for one in made)


def _entry_rows(entry: Entry) -> Iterator[Row]:
    number = f"{entry.number}  "
    indent = " " * len(number)
    place = _place(entry)
    title = SafeText().append(entry.name, "bold")
    for part in entry.place:
        title.append(f"   {part}")
    if entry.is_brief:
        location = f"{place[0].rpartition('/')[2]}:{place[1]}   " if place else ""
        yield Row(number, indent, title.append("   ").append(location, "cyan").append(entry.does), entry.vertex, place)
        return
    yield Row(number, indent, title, entry.vertex, place)
    if place:
        yield Row(indent, indent, SafeText(entry.source or ""), entry.vertex, place, _location(place))
    for text in (entry.does, *entry.also):
        if text:
            yield Row(indent, indent, SafeText(text), entry.vertex, place)


def remark_rows(step: Step, bullet: str = "") -> Iterator[Row]:
    """A sentence, and the line of code that it is about; a short one with its line in one row."""
    place = _place(step)
    indent = " " * (len(bullet) or 2)
    if place and len(step.text) <= SHORT_REMARK:
        yield Row(bullet, indent, SafeText(step.source or ""), step.vertex, place, _location(place), f"{step.text}  ")
        return
    yield Row(bullet, indent, SafeText(step.text), step.vertex, place)
    if place:
        yield Row(indent, indent, SafeText(step.source or ""), step.vertex, place, _location(place))


def _bracketed(made: Sequence[Row], *, is_first: bool, is_last: bool) -> Iterator[Row]:
    for at, row in enumerate(made):
        is_end = is_last and at == len(made) - 1
        lead = FIRST if is_first and at == 0 else LAST if is_end else BETWEEN
        yield replace(row, lead=lead + row.lead, follow=(OUTSIDE if is_end else BETWEEN) + row.follow)


def behind_rows(behind: Sequence[Step]) -> Iterator[Row]:
    """What is blocked behind it, one row each, with its line."""
    lead = "Blocked behind it: "
    for at, step in enumerate(behind):
        indent = " " * len(lead)
        begin = indent if at else lead
        if place := _place(step):
            name = place[0].rpartition("/")[2]
            title = step.text.removesuffix(f" {name}")  # a driver is called by its script
            yield Row(begin, indent, SafeText(step.source or ""), step.vertex, place, f"{name}:{place[1]}", title)
        else:
            yield Row(begin, indent, SafeText(step.text), step.vertex)


def advice_rows(finding: Finding) -> Iterator[Row]:
    """``Fix: ...``, or ``Next: ...``: what to do about it."""
    if advice := finding.advice:
        lead = f"{advice.label}: "
        yield Row(lead, " " * len(lead), SafeText(advice.text), style="bold green")


def assumption_rows(finding: Finding) -> Iterator[Row]:
    """What a suspicion assumes, which :func:`status` leaves out."""
    if is_stuck(finding) and finding.assumed and not finding.confirmed:
        yield Row("", "  ", SafeText(f"Suspected, assuming that {listed(finding.assumed)}"))


def _place(row: Entry | Step) -> tuple[str, int] | None:
    return (row.file, row.line) if row.file is not None and row.line is not None else None


def _location(place: tuple[str, int]) -> str:
    return place_of(*place)
