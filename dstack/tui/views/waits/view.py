"""The Waits view: cycles and the ends of open chains, with the waiters of each below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.wait_tree import WaitBranch, WaitTree
from dstack.tui.views.base import OutlineView, SourceLocation
from dstack.tui.views.waits.lines import WaitDetails, WaitLines
from dstack.tui.widgets.detail import Detail
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key


class WaitsView(OutlineView):
    """The wait-for graph. At the top are cycles and the ends of open chains; below each are its waiters.

    The bracket beside a cycle leads from its last entry back to its first. Waiters that are alike share one line. Each
    waiter has one entry of its own; where it is only named, Enter goes to that entry. Each wait shows its call, ref,
    duration and evidence. Exact: read from the process. Inferred: follows from what was read. Assumed: not proven.
    Since the snapshot before, a wait with + is new, and one with ~ was for something else or in another call; of
    several in one line some are. Those that are gone are listed last.
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
        self._lines: WaitLines | None = None

    def compose_body(self) -> ComposeResult:
        """The tree, and the details of the line under the cursor."""
        yield Outline(empty="No waits.")
        yield Detail()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the tree; cursor and folds stay."""
        tree = WaitTree(analysed.merged_index, analysed.diagnosis)
        self._lines = WaitLines(analysed, tree, WaitDetails(analysed), self.changes)
        self._outline.show(self._lines.lines())
        self._show_details()

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Go to the waiter's own entry; else fold or unfold the line; else go to the stack."""
        branch = self._branch
        if branch is not None and branch.place != "here":
            self.reveal(branch.first)
        elif event.line.has_children:
            event.outline.toggle(event.line)
        else:
            self.action_stack()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the line."""
        branch = self._branch
        if action in ("target", "target_stack"):
            return self._target is not None
        if action == "waiter":
            return branch is not None and branch.place != "here"
        if action == "stack":
            return branch is not None and branch.role != "cycle"
        return True

    def action_stack(self) -> None:
        """Go to the stack of the waiter."""
        if self._branch is not None:
            self.host.go_to("stacks", self._branch.first)

    def action_target(self) -> None:
        """Go to the entry of the target of the wait."""
        if self._target is not None:
            self.reveal(self._target)

    def action_target_stack(self) -> None:
        """Go to the stack of the target of the wait."""
        if self._target is not None:
            self.host.go_to("stacks", self._target)

    def action_waiter(self) -> None:
        """Go to the waiter's own entry."""
        if self._branch is not None:
            self.reveal(self._branch.first)

    def to_copy(self) -> str | None:
        """The details of the line."""
        return self._lines.details.as_text(self._branch) if self._lines and self._branch else None

    def to_open(self) -> SourceLocation | None:
        """The line of code of the execution."""
        return self._lines.details.location(self._branch) if self._lines and self._branch else None

    def _path_to(self, vertex: Key) -> Sequence[str]:
        return self._lines.path_to(vertex) if self._lines else ()

    @property
    def _branch(self) -> WaitBranch | None:
        return self._data if isinstance(self._data, WaitBranch) else None

    @property
    def _target(self) -> Key | None:
        return self._branch.edge.target if self._branch and self._branch.edge else None

    def _details(self) -> Iterable[Text]:
        return self._lines.details.texts(self._branch) if self._lines and self._branch else ()
