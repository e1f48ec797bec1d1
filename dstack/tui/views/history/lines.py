"""The snapshots of this run, and the differences between two of them, as lines of an outline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import localtime, strftime
from typing import TypeVar

from rich.text import Text

from dstack import words
from dstack.analysis.index.ranks import NO_RANKS
from dstack.analysis.naming import names
from dstack.analysis.views.snapshot_diff import Change, Comparison, Found, Moved, Waited
from dstack.diagnosis import Vertex
from dstack.model import Frame
from dstack.report.paths import location
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.top_bar import MARKS
from dstack.tui.widgets.outline_line import Line

T = TypeVar("T", Moved, Waited)
CHANGES: dict[Change, tuple[str, str]] = {
    "new": ("+ new", "green"),
    "gone": ("- gone", "red"),
    "moved": ("→ moved", "cyan"),
    "stayed": ("= stayed", "yellow"),
    "not known": ("? not known", "magenta"),
}
"""The meaning never depends on the colour alone."""
ORDER: tuple[Change, ...] = ("new", "gone", "stayed", "moved", "not known")
OPENED = 12
"""So many lines of one change are unfolded at first."""
HANG = 2
"""Waits and executions are indented by so many cells after their first row."""


def look_lines(looks: Sequence[Look], picked: Sequence[int], shown: Look | None) -> list[Line]:
    """One line for each snapshot, with which are compared, the earlier first, and which one the views show."""
    lines = []
    for look in looks:
        place = dict(zip(picked, ("before", "after"), strict=False))
        text = SafeText().append(f"{place.get(look.number, ''):<7}", "bold").append(f"#{look.number}  {clock(look)}  ")
        verdict = look.diagnosis.verdict
        text.append(f"{MARKS[verdict]} {verdict.upper()}", "bold").append(f"  {_coverage(look)}")
        text.append("  shown in the views" if look is shown else "", "italic")
        lines.append(Line(f"look/{look.number}", text, data=look, hang=7))
    return lines


def clock(look: Look) -> str:
    """When it was taken, by this machine's time zone."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(look.snapshot.taken_at))


def _coverage(look: Look) -> str:
    count = len(look.diagnosis.findings)
    seen = look.diagnosis.coverage.workers
    incomplete = ", incomplete" if look.diagnosis.incomplete else ""
    return f"{words.plural(count, 'finding')}, {seen.observed}/{seen.total} workers{incomplete}"


@dataclass(frozen=True)
class Lines:
    """The lines of one comparison."""

    before: Look
    after: Look
    comparison: Comparison

    def lines(self) -> Iterator[Line]:
        """What is between the two, then findings, waits and executions, by what became of them."""
        between = words.duration(self.comparison.between_s)
        title = SafeText().append(f"From #{self.before.number} to #{self.after.number}", "bold")
        yield Line("between", title.append(f", {between} later"))
        yield self._findings()
        yield self._section("waits", "Waits", self.comparison.waits, self._wait)
        yield self._section("executions", "Executions", self.comparison.executions, self._moved)
        yield from self._parts()

    def _findings(self) -> Line:
        found = sorted(self.comparison.findings, key=lambda one: ORDER.index(one.change))
        lines = [self._finding(one) for one in found]
        text = SafeText().append("Findings", "bold").append_text(_counts([one.change for one in found]))
        return Line("findings", text, lines, is_open=True)

    def _finding(self, found: Found) -> Line:
        look, number = (self.before, found.before) if found.after is None else (self.after, found.after)
        assert number is not None
        finding = look.diagnosis.findings[number]
        text = _mark(found.change).append(f"{finding.kind}: ", "bold").append(finding.summary)
        return Line(f"finding/{found.before}/{found.after}", text, data=found, hang=12)

    def _section(self, key: str, title: str, things: Sequence[T], say: Callable[[T, str], Text]) -> Line:
        by_change: dict[Change, list[T]] = {change: [] for change in ORDER}
        for thing in things:
            by_change[thing.change].append(thing)
        lines = [self._changed(key, change, found, say) for change, found in by_change.items() if found]
        text = SafeText().append(title, "bold").append_text(_counts([thing.change for thing in things]))
        return Line(key, text, lines, is_open=True)

    def _changed(self, key: str, change: Change, things: list[T], say: Callable[[T, str], Text]) -> Line:
        groups: dict[object, list[T]] = {}
        for thing in things:
            groups.setdefault(thing.shape, []).append(thing)
        lines = [self._alike(key, group, say) for group in sorted(groups.values(), key=len, reverse=True)]
        text = _mark(change).append(f"{len(things):,}", "bold")
        is_open = change not in ("stayed", "not known") and len(lines) <= OPENED
        return Line(f"{key}/{change}", text, lines, is_open=is_open)

    def _alike(self, key: str, group: list[T], say: Callable[[T, str], Text]) -> Line:
        first = group[0]
        name = f"{key}/{first.change}/{first.vertex}"
        if len(group) == 1:
            return self._one(name, first, say)
        vertices = [vertex for one in group if (vertex := self._vertex(one))]
        part = self.look_of(first).stacks.teams.slice_of(vertices) if len(vertices) == len(group) else None
        text = SafeText().append(f"{len(group):,} × ", "bold").append_text(say(first, part.words if part else ""))
        return Line(f"{name}/alike", text, partial(self._each, key, group, say), data=first, hang=HANG)

    def _each(self, key: str, group: list[T], say: Callable[[T, str], Text]) -> list[Line]:
        return [self._one(f"{key}/{one.change}/{one.vertex}", one, say) for one in group]

    def _one(self, key: str, one: T, say: Callable[[T, str], Text]) -> Line:
        vertex = self._vertex(one)
        index = self.look_of(one).index
        ranks = index.ranks(vertex.worker_id or "", vertex.child_pid) if vertex else NO_RANKS
        return Line(key, say(one, ranks.in_words), data=one, terms=ranks.terms, hang=HANG)

    def _vertex(self, one: T) -> Vertex | None:
        return self.look_of(one).diagnosis.vertices.get(one.vertex)

    def _wait(self, wait: Waited, ranks: str) -> Text:
        text = SafeText(wait.label).append(f"  {ranks}" if ranks else "").append(f"  {wait.kind}", "magenta")
        if wait.change == "stayed":
            since = names.lasting(wait.since)
            text.append("  in both, but may have ended in between" if wait.may_have_ended else f"  the same {since}")
        return text

    def _moved(self, moved: Moved, ranks: str) -> Text:
        text = SafeText(moved.label).append(f"  {ranks}" if ranks else "")
        if moved.change == "moved":
            text.append(f"  {_line(moved.before)} → {_line(moved.after)}", "cyan")
        else:
            text.append(f"  {_line(moved.after or moved.before)}", "cyan")
        return text.append(f"  {moved.cpu_s:.1f} s of CPU time in between" if moved.cpu_s is not None else "", "dim")

    def _parts(self) -> Iterator[Line]:
        for what in ("workers", "nodes"):
            for change in ("new", "gone"):
                keys: tuple[str, ...] = getattr(self.comparison, f"{change}_{what}")
                if keys:
                    count = words.plural(len(keys), what.removesuffix("s"))
                    text = _mark("new" if change == "new" else "gone").append(count, "bold")
                    yield Line(f"{what}/{change}", text, [Line(f"{what}/{key}", SafeText(key)) for key in keys])

    def look_of(self, thing: Moved | Waited) -> Look:
        """The snapshot that has it."""
        return self.before if thing.change == "gone" else self.after


def _mark(change: Change) -> SafeText:
    mark, style = CHANGES[change]
    return SafeText().append(f"{mark:<11} ", style)


def _counts(changes: Sequence[Change]) -> Text:
    text = SafeText()
    for change in ORDER:
        if count := changes.count(change):
            mark, style = CHANGES[change]
            text.append("  ").append(f"{mark}: {count:,}", style)
    return text if changes else text.append("  none", "dim")


def _line(frame: Frame | None) -> str:
    return location(frame.file, frame.line) if frame else ""
