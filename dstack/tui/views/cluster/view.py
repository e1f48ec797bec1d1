"""The nodes, workers and actors of the cluster, and what each does now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from dstack.analysis.views.inventory import Inventory, Lacking
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.views.cluster.lines import Lines
from dstack.tui.views.outline_view import OutlineView
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
        self._lines: Lines | None = None

    def compose_body(self) -> ComposeResult:
        """The cluster, and all about the line under the cursor."""
        yield Outline(empty="No nodes in this snapshot.")
        yield Detail()

    def show(self, look: Look) -> None:
        """Shows the look's cluster, with cursor and folds where they were."""
        self._lines = Lines(look, Inventory(look.index, look.diagnosis))
        self._outline.show(self._lines.roots())
        self._tell()

    def on_outline_highlighted(self, _: Outline.Highlighted) -> None:
        """Tells all about the line."""
        self._tell()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Folds, or goes to the waits of what cannot be unfolded."""
        if event.line.has_children:
            event.outline.toggle(event.line)
        else:
            self.action_waits()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What the line has not is not offered."""
        if action == "stack":
            return self._vertex is not None and not isinstance(self._data, Lacking)
        if action == "waits":
            return self._vertex is not None
        return True

    def action_stack(self) -> None:
        """To the stack of what runs there, the worst of a worker's."""
        if self._vertex is not None:
            self.host.go_to("stacks", self._vertex)

    def action_waits(self) -> None:
        """To its place among the waits."""
        if self._vertex is not None:
            self.host.go_to("waits", self._vertex)

    def to_copy(self) -> str | None:
        """All about the line."""
        text = "\n".join(text.plain for text in self._lines.told(self._data)) if self._lines else ""
        return text or None

    def to_open(self) -> Place | None:
        """The line of code at which the execution is."""
        return self._lines.code(self._data) if self._lines else None

    def _way_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.way_to(vertex) if self._lines else ()

    @property
    def _vertex(self) -> Key | None:
        return self._lines.vertex(self._data) if self._lines else None

    def _tell(self) -> None:
        self.query_one(Detail).tell(self._lines.told(self._data) if self._lines else ())
        self.refresh_bindings()
