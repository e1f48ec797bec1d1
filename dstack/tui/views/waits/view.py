"""The wait-for graph: cycles, the ends of open chains, and below each its waiters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from dstack.analysis.views.wait_tree import Branch, WaitTree
from dstack.tui.source import Look
from dstack.tui.views.base import Place
from dstack.tui.views.outline_view import OutlineView
from dstack.tui.views.waits.lines import Lines
from dstack.tui.widgets.detail import Detail
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key


class WaitsView(OutlineView):
    """The wait-for graph. At the top are cycles and the ends of open chains; below each are its waiters.

    The bracket beside a cycle leads from its last entry back to its first. Waiters that are alike share one line. Each
    waiter has one entry of its own; where it is only named, Enter goes to that entry. Each wait shows its call, ref,
    duration and evidence. Exact: read from the process. Inferred: follows from what was read. Assumed: not proven.
    """

    CSS = "WaitsView Outline { scrollbar-size-horizontal: 0; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of the waiter"),
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
        self._lines: Lines | None = None

    def compose_body(self) -> ComposeResult:
        """The tree, and all about the line under the cursor."""
        yield Outline(empty="No waits.")
        yield Detail()

    def show(self, look: Look) -> None:
        """Shows the look's tree, with cursor and folds where they were."""
        self._lines = Lines(look, WaitTree(look.index, look.diagnosis))
        self._outline.show(self._lines.roots())
        self._tell()

    def on_outline_highlighted(self, _: Outline.Highlighted) -> None:
        """Tells all about the line."""
        self._tell()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Goes to the own entry of what is only named; else folds, or shows the stack of what has no waiters."""
        branch = self._branch
        if branch is not None and branch.place != "here":
            self.reveal(branch.first)
        elif event.line.has_children:
            event.outline.toggle(event.line)
        else:
            self.action_stack()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What the line has not is not offered."""
        branch = self._branch
        if action in ("target", "target_stack"):
            return branch is not None and branch.edge is not None
        if action == "waiter":
            return branch is not None and branch.place != "here"
        if action == "stack":
            return branch is not None and branch.role != "circle"
        return True

    def action_stack(self) -> None:
        """To the stack of who waits."""
        if self._branch is not None:
            self.host.go_to("stacks", self._branch.first)

    def action_target(self) -> None:
        """To the place of what it waits for."""
        if self._branch is not None and self._branch.edge is not None:
            self.reveal(self._branch.edge.target)

    def action_target_stack(self) -> None:
        """To the stack of what it waits for."""
        if self._branch is not None and self._branch.edge is not None:
            self.host.go_to("stacks", self._branch.edge.target)

    def action_waiter(self) -> None:
        """To the place of who is only named here."""
        if self._branch is not None:
            self.reveal(self._branch.first)

    def to_copy(self) -> str | None:
        """All about the line."""
        return self._lines.in_words(self._branch) if self._lines and self._branch else None

    def to_open(self) -> Place | None:
        """The line of code at which the execution is."""
        return self._lines.code(self._branch) if self._lines and self._branch else None

    def _way_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.way_to(vertex) if self._lines else ()

    @property
    def _branch(self) -> Branch | None:
        return self._data if isinstance(self._data, Branch) else None

    def _tell(self) -> None:
        branch = self._branch
        self.query_one(Detail).tell(self._lines.told(branch) if self._lines and branch else ())
        self.refresh_bindings()
