"""The pane beside the tree: the page of the selected stack or branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.views.thread_pages import Stacks
from dstack.report.safe_text import SafeText
from dstack.tui.views.stacks.branch_page import branch_page
from dstack.tui.views.stacks.line_parts import About
from dstack.tui.views.stacks.merged_tree import MergedTree
from dstack.tui.views.stacks.stack_page import stack_page
from dstack.tui.widgets.outline import Outline
from dstack.vertex_keys import Key

SHOWN_TRAIL = 4


@dataclass(frozen=True, slots=True)
class Page:
    """What a page is about: the stack of a vertex, or a branch of the merged tree."""

    vertex: Key | None = None
    path: tuple[PathStep, ...] | None = None


class PagePane(Vertical):
    """Shows the last page of a trail of visited pages."""

    def __init__(self) -> None:
        super().__init__(id="beside", classes="pane")
        self._shown: Page | None = None

    def compose(self) -> ComposeResult:
        """The lines of the page."""
        yield Outline(id="page", empty="")

    @property
    def outline(self) -> Outline:
        """The lines of the page."""
        return self.query_one(Outline)

    def show(self, stacks: Stacks, merged: MergedTree | None, trail: Sequence[Page]) -> None:
        """Show the last page; the cursor stays where it is on a page that is shown already."""
        page = trail[-1] if trail else Page(path=())
        is_new = page != self._shown
        if page.vertex is None:
            self._show_branch(merged, page.path or (), is_new=is_new)
        elif not self._show_stack(stacks, page.vertex, trail, is_new=is_new):
            return
        self._shown = page if self.outline.size.height else None

    def _show_stack(self, stacks: Stacks, vertex: Key, trail: Sequence[Page], *, is_new: bool) -> bool:
        """Show the stack of a vertex; false if it was not read."""
        stack = stacks.stack(vertex)
        if stack is None:
            self.border_title = "Stack"
            self.outline.show([])
            return False
        self.border_title = SafeText(_trail_in_words(stacks, trail))
        self.outline.show(stack_page(stacks, stack))
        if is_new:
            self._select(f"frame/{stack.call_at}" if stack.call_at is not None else self._first_location())
        return True

    def _show_branch(self, merged: MergedTree | None, path: Sequence[PathStep], *, is_new: bool) -> None:
        self.border_title = "Branch" if merged else "Stack"
        self.outline.show(branch_page(merged, merged.root.find(path)) if merged else [])
        if is_new:
            self.outline.action_first()

    def _select(self, key: str) -> None:
        """Select a line, and show the page from its top if the line is on the screen then."""
        row = self.outline.row_of(key)
        if row is not None and self.outline.reveal([key]) and row < self.outline.size.height:
            self.outline.scroll_to(y=0, animate=False, force=True)

    def _first_location(self) -> str:
        lines = (line for _, line in self.outline.visible_lines if isinstance(line.data, About) and line.data.location)
        return next((line.key for line in lines), "who")


def _trail_in_words(stacks: Stacks, trail: Sequence[Page]) -> str:
    """The names of the last pages, the current one last."""
    found = [stacks.stack(page.vertex) if page.vertex else None for page in trail[-SHOWN_TRAIL:]]
    before = "… › " if len(trail) > SHOWN_TRAIL else ""
    return before + " › ".join(stack.name if stack else "branch" for stack in found)
