"""The lines on top of every view: the verdict, what it rests on, and which views there are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from dstack.diagnosis import Verdict
from dstack.report.headline import headline
from dstack.report.safe_text import SafeText
from dstack.tui.host import Status
from dstack.tui.source import Look
from dstack.words import duration

MARKS: dict[Verdict, str] = {"deadlock": "✖", "hang": "✖", "stalled": "■", "blocked": "●", "clear": "✔"}
"""The meaning never depends on the colour alone."""


class TopBar(Vertical):
    """Verdict and headline; source, coverage, age, and what is under way; then the views, by their keys."""

    DEFAULT_CSS = """
    TopBar { height: 3; dock: top; background: $panel; }
    TopBar > Static { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    TopBar > #verdict { text-style: bold; }
    TopBar > #verdict.deadlock, TopBar > #verdict.hang { color: $text-error; }
    TopBar > #verdict.stalled { color: $text-warning; }
    TopBar > #verdict.blocked { color: $text-primary; }
    TopBar > #verdict.clear { color: $text-success; }
    TopBar > #coverage { color: $text-muted; }
    """

    def compose(self) -> ComposeResult:
        """Three lines."""
        yield Static(id="verdict")
        yield Static(id="coverage")
        yield Static(id="views")

    def tell(self, look: Look | None, status: Status, views: Sequence[str], here: str) -> None:
        """Shows a look, what is under way, and in which of the views one is."""
        self.query_one("#views", Static).update(views_line(views, here))
        verdict = self.query_one("#verdict", Static)
        verdict.set_classes([look.diagnosis.verdict] if look else [])
        verdict.update(verdict_line(look, status))
        self.query_one("#coverage", Static).update(coverage_line(look, status, now_for(look) if look else 0.0))


def now_for(look: Look) -> float:
    """The time, in Unix seconds, by which a look's age counts."""
    return max(time.time(), look.snapshot.taken_at)


def views_line(views: Sequence[str], here: str) -> Text:
    """The views and their keys; where one is, in brackets."""
    text = SafeText()
    for number, name in enumerate(views, 1):
        if name == here:
            text.append(f"[{number} {name.capitalize()}]", "bold reverse").append(" ")
        else:
            text.append(f" {number} ", "bold").append(f"{name.capitalize()}  ")
    return text


def verdict_line(look: Look | None, status: Status) -> Text:
    """The verdict in one line, or that there is none yet."""
    if look is None:
        return SafeText(f"✖ {status.trouble}" if status.trouble else f"… collecting: {status.doing or 'starting'}")
    verdict = look.diagnosis.verdict
    return SafeText(f"{MARKS[verdict]} {verdict.upper()}  {headline(look.diagnosis)}")


def coverage_line(look: Look | None, status: Status, now: float) -> Text:
    """What the verdict rests on, how old it is, and what is under way; what matters most comes first."""
    parts = []
    if status.is_frozen:
        parts.append("FROZEN" + (f", {status.newer} newer" if status.newer else ""))
    if look is not None:
        if status.trouble:
            parts.append(f"! {status.trouble}")
        coverage = look.diagnosis.coverage
        incomplete = ", INCOMPLETE" if look.diagnosis.incomplete else ""
        parts.append(f"observed {coverage.workers.observed}/{coverage.workers.total} workers, ")
        parts[-1] += f"{coverage.nodes.observed}/{coverage.nodes.total} nodes{incomplete}"
        parts.append(f"#{look.number}, {duration(max(0.0, now - look.snapshot.taken_at))} old")
        if not look.is_final:
            parts.append("second sample in progress")
        elif status.doing:
            parts.append(f"… {status.doing}")
    if status.every_s:
        parts.append(f"every {status.every_s} s")
    parts.append(status.source)
    return SafeText("  ".join(part for part in parts if part))
