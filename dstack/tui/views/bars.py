"""The bars of each view: above, the verdict, the state of the cluster and the views; below, the keys that fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from dstack.model.diagnosis import Verdict
from dstack.report.rich_text import SafeText
from dstack.report.summaries import headline
from dstack.tui.snapshot_sources import NumberedSnapshot
from dstack.tui.widgets.time_axis import clock
from dstack.words import duration

VERDICT_MARKS: dict[Verdict, str] = {
    "deadlock": "✖",
    "hang": "✖",
    "stalled": "■",
    "unknown": "?",
    "running": "●",
    "idle": "✔",
}
"""The marks say the same as the colours."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the application is doing.

    ``doing`` names the current step, empty if there is none. ``every_s`` is the period of automatic snapshots, None for
    none. ``newer`` counts the snapshots received since the views were frozen. ``trouble`` is why the last attempt
    failed, and ``remedy`` what to do. ``lost_at`` is when the cluster answered last, in Unix seconds, if it does not
    answer; else None. ``last`` is the number of the newest snapshot if the shown one is one of several, as in a
    replay, else 0.
    """

    source: str = ""
    doing: str = ""
    is_frozen: bool = False
    newer: int = 0
    every_s: int | None = None
    trouble: str = ""
    last: int = 0
    is_playing: bool = False
    lost_at: float | None = None
    remedy: str = ""

    def answered(self) -> Status:
        """The status after an answer of the cluster."""
        return replace(self, trouble="", remedy="", lost_at=None)


class TopBar(Vertical):
    """Three rows: verdict and headline; coverage, age, current step and source; the views with their keys.

    On a tall screen a long headline takes up to three rows.
    """

    DEFAULT_CSS = """
    TopBar { height: auto; dock: top; background: $panel; }
    TopBar > Static { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    TopBar > #verdict { text-style: bold; }
    TopBar > #verdict.deadlock, TopBar > #verdict.hang { color: $text-error; }
    TopBar > #verdict.stalled { color: $text-warning; }
    TopBar > #coverage { color: $text-muted; }
    TopBar > #verdict.lost { color: $text-muted; text-style: none; }
    """

    def compose(self) -> ComposeResult:
        yield Static(id="verdict")
        yield Static(id="coverage")
        yield Static(id="views")

    def show(self, shown: NumberedSnapshot | None, status: Status, views: Sequence[str], current: str) -> None:
        """Show a snapshot, the status of the application, and which view is current."""
        self.query_one("#views", Static).update(views_line(views, current))
        verdict = self.query_one("#verdict", Static)
        verdict.set_classes(["lost" if status.lost_at else shown.analysed.diagnosis.verdict] if shown else [])
        verdict.update(verdict_line(shown, status))
        self.query_one("#coverage", Static).update(coverage_line(shown, status, now_for(shown) if shown else 0.0))


def now_for(shown: NumberedSnapshot) -> float:
    """The time at which a snapshot's age is measured, in Unix seconds."""
    return max(time.time(), shown.taken_at)


def views_line(views: Sequence[str], current: str) -> Text:
    """The views and their keys; the current view is in brackets."""
    text = SafeText()
    for number, name in enumerate(views, 1):
        if name == current:
            text.append(f"[{number} {name.capitalize()}]", "bold reverse").append(" ")
        else:
            text.append(f"{number} ", "bold").append(f"{name.capitalize()} ")
    return text


def verdict_line(shown: NumberedSnapshot | None, status: Status) -> Text:
    """The verdict in one line; before the first snapshot the current step or the error."""
    if shown is None:
        return SafeText(f"✖ {status.trouble}" if status.trouble else f"… collecting: {status.doing or 'starting'}")
    verdict = shown.analysed.diagnosis.verdict
    return SafeText(f"{VERDICT_MARKS[verdict]} {verdict.upper()}  {headline(shown.analysed.diagnosis)}")


def coverage_line(shown: NumberedSnapshot | None, status: Status, now: float) -> Text:
    """Coverage and age of the snapshot, current step and source; the most important part comes first."""
    parts = []
    if status.lost_at and shown is not None:
        parts.append(f"No answer since {clock(status.lost_at)}, showing snapshot {shown.number}")
    if status.is_frozen:
        parts.append("FROZEN" + (f", {status.newer} newer" if status.newer else ""))
    if shown is None and status.trouble:
        parts.append(f"No snapshot. {status.remedy}")
    if shown is not None:
        if status.trouble:
            parts.append(f"! {status.trouble} {status.remedy}")
        if status.last:
            parts += _place(shown, status)
        coverage = shown.analysed.diagnosis.coverage
        incomplete = ", INCOMPLETE" if shown.analysed.diagnosis.incomplete else ""
        parts.append(f"observed {coverage.workers.observed}/{coverage.workers.total} workers, ")
        parts[-1] += f"{coverage.nodes.observed}/{coverage.nodes.total} nodes{incomplete}"
        if not status.last:
            parts.append(f"#{shown.number}, {duration(max(0.0, now - shown.taken_at))} old")
            parts += _changes(shown)
        if not shown.is_final:
            parts.append("second sample in progress")
        elif status.doing:
            parts.append(f"… {status.doing}")
    if status.every_s:
        parts.append(f"live, {status.every_s} s")
    parts.append(status.source)
    return SafeText("  ".join(part for part in parts if part))


def _place(shown: NumberedSnapshot, status: Status) -> list[str]:
    """``snapshot 3 of 7, 03:12:10, playing``, and what is new since the snapshot before."""
    playing = ", playing" if status.is_playing else ""
    return [f"snapshot {shown.number} of {status.last}, {clock(shown.taken_at)}{playing}", *_changes(shown)]


def _changes(shown: NumberedSnapshot) -> list[str]:
    return [shown.summary.changes] if shown.summary else []


class KeyBar(Widget):
    """One row: the keys of the view, as many as fit, the most important first; help and quit always."""

    ALWAYS = ("app.help", "app.quit")
    COMPONENT_CLASSES = {"key-bar--key"}
    DEFAULT_CSS = """
    KeyBar {
        height: 1; dock: bottom; background: $panel; color: $foreground;
        link-style: none; link-color: $foreground; link-background-hover: $boost; link-color-hover: $foreground;
    }
    KeyBar > .key-bar--key { color: $footer-key-foreground; text-style: bold; }
    """

    def on_mount(self) -> None:
        """Draw the keys anew whenever they change."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _: Screen[Any]) -> None:
        self.refresh()

    def render(self) -> Content:
        """The keys; a click on one presses it."""
        shown = {
            active.binding.action: active for active in self.screen.active_bindings.values() if active.binding.show
        }
        always = [self._key(one.binding) for one in shown.values() if one.binding.id in self.ALWAYS]
        right = Content.assemble(*always)
        left, room = Content(""), self.size.width - right.cell_length
        for active in shown.values():
            key = self._key(active.binding, is_enabled=active.enabled)
            if active.binding.id not in self.ALWAYS and left.cell_length + key.cell_length <= room:
                left = left.append(key)
        return left.append(" " * max(0, room - left.cell_length)).append(right)

    def _key(self, binding: Binding, *, is_enabled: bool = True) -> Content:
        sign = self.app.get_key_display(binding)
        style = self.get_visual_style("key-bar--key")
        key = Content.assemble((f" {sign}", style), f" {binding.description} ")
        if not is_enabled:
            return key.stylize("dim")
        return key.stylize(Style.from_meta({"@click": f"app.simulate_key({binding.key!r})"}))
