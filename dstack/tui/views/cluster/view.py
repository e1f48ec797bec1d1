"""The Cluster view: nodes, workers, actors and pending work, with the current activity of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import Inventory, PendingItem
from dstack.tui.views.base import OutlineView, SourceLocation
from dstack.tui.views.cluster.lines import ClusterDetails, ClusterLines
from dstack.tui.widgets.detail import Detail
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key


class ClusterView(OutlineView):
    """The cluster by node: host load and memory, resources used and free, placement groups, workers and actors.

    Each worker shows what it does now: it runs, waits, is idle, or was not read; a stuck worker can never proceed.
    Below the nodes are pending tasks, actors and placement groups, with what they lack. Enter unfolds a line, or goes
    to Waits.
    """

    CSS = "ClusterView Outline { scrollbar-size-horizontal: 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of what runs there"),
        Binding("w", "waits", "Waits", id="own.waits", tooltip="Go to its entry in the Waits view"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: ClusterLines | None = None
        self._texts: ClusterDetails | None = None

    def compose_body(self) -> ComposeResult:
        """The outline, and the details of the line under the cursor."""
        yield Outline(empty="No nodes in this snapshot.")
        yield Detail()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the cluster; cursor and folds stay."""
        inventory = Inventory(analysed.merged_index, analysed.diagnosis)
        self._lines, self._texts = ClusterLines(analysed, inventory), ClusterDetails(analysed.merged_index, inventory)
        self._outline.show(self._lines.roots())
        self._show_details()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Fold or unfold the line; go to the waits of a line without children."""
        if event.line.has_children:
            event.outline.toggle(event.line)
        else:
            self.action_waits()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the line."""
        if action == "stack":
            return self._vertex is not None and not isinstance(self._data, PendingItem)
        if action == "waits":
            return self._vertex is not None
        return True

    def action_stack(self) -> None:
        """Go to the stack of the execution; to that of the worst state for a worker."""
        if self._vertex is not None:
            self.host.go_to("stacks", self._vertex)

    def action_waits(self) -> None:
        """Go to its entry in the Waits view."""
        if self._vertex is not None:
            self.host.go_to("waits", self._vertex)

    def to_copy(self) -> str | None:
        """The details of the line."""
        return "\n".join(text.plain for text in self._details()) or None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the execution."""
        return self._texts.location(self._data) if self._texts else None

    def _path_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.path_to(vertex) if self._lines else ()

    @property
    def _vertex(self) -> Key | None:
        return self._texts.vertex(self._data) if self._texts else None

    def _details(self) -> Iterable[Text]:
        return self._texts.texts(self._data) if self._texts else ()
