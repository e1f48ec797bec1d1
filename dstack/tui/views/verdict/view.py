"""The Verdict view: the findings, the most severe first, each with its diagram, its fix and its details."""

from __future__ import annotations

from textual.app import ComposeResult

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.tui.views.base import SourceLocation
from dstack.tui.views.outline_view import OutlineView
from dstack.tui.views.verdict.lines import About, finding_lines, finding_text
from dstack.tui.widgets.outline import Outline


class VerdictView(OutlineView):
    """The findings, worst first. Each has a diagram of its waits, a fix, and details that unfold.

    Enter on an entry goes to it in the Waits view; o opens its line of code.
    """

    def compose_body(self) -> ComposeResult:
        """The outline."""
        yield Outline(empty="No findings.")

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the findings of the snapshot."""
        self._outline.show(list(finding_lines(analysed)))

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Go to the vertex of the line; fold or unfold a line without one."""
        if self._about.vertex:
            self.host.go_to("waits", self._about.vertex)
        else:
            event.outline.toggle(event.line)

    def to_copy(self) -> str | None:
        """The whole finding."""
        return finding_text(self._about.finding, self.app.console) if self._about.finding else None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the entry."""
        return self._about.location

    @property
    def _about(self) -> About:
        return self._data if isinstance(self._data, About) else About()
