"""The Stacks view: stacks by process or merged, the page of the selected one, and the way from wait to wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from dstack.analysis.stacks.stack_tree import Grouping, TextFilter
from dstack.analysis.views.all_stacks import Stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.profile import PathStep
from dstack.model.vertex_keys import Key
from dstack.observed.node import LogTail
from dstack.report.logs_text import tails_of_workers
from dstack.report.rich_text import SafeText
from dstack.tui.views.base import GROUP, LOGS, WAITS, WHOLE, GroupedView, SourceLocation, following
from dstack.tui.views.stacks_pages import branch_page, stack_in_words, stack_page, target_key
from dstack.tui.views.stacks_trees import NO_WORDS, About, MergedTree, ProcessTree, branch_key, branch_keys, stack_keys
from dstack.tui.widgets.outline import Line, Outline

SHOWN_TRAIL = 4
SIDE_BY_SIDE = 100
"""Minimum width for two panes side by side, in columns."""


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
        stack = stacks.pages.page(vertex)
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
        return next((line.key for line in lines), "execution")


def first_stack(analysed: AnalysedSnapshot) -> Key | None:
    """The first stack of the first finding, else the first that waits."""
    findings = analysed.diagnosis.findings
    members = (key for finding in findings for key in (*finding.members, *finding.blocked_behind))
    waiting = (one.key for one in analysed.stacks.running().executions if one.activity == "waiting")
    pages = analysed.stacks.pages
    return next((key for key in chain(members, waiting) if pages.frames_of(key) and pages.path_to(key)), None)


def _trail_in_words(stacks: Stacks, trail: Sequence[Page]) -> str:
    """The names of the last pages, the current one last."""
    found = [stacks.pages.page(page.vertex) if page.vertex else None for page in trail[-SHOWN_TRAIL:]]
    before = "… › " if len(trail) > SHOWN_TRAIL else ""
    return before + " › ".join(stack.name if stack else "branch" for stack in found)


class StacksView(GroupedView):
    """All stacks: by node, process and thread, or merged into one tree.

    Beside the tree is the selected stack, with its source. Enter on a wait goes to the stack that it depends on, on
    any node; Backspace goes back. Since the snapshot before, a worker or stack with + is new, and one with ~ is at
    another place in its code.
    """

    CSS_PATH = "stacks.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "m", "merge", "Merge", id="own.merge", tooltip="Merge all stacks into one tree, or list them by process"
        ),
        WAITS,
        LOGS,
        Binding("t", "mark", "Mark", id="own.mark", tooltip="Mark these workers; only marked ones are merged"),
        GROUP,
        WHOLE,
        Binding(
            "n",
            "outlier(1)",
            "Outlier",
            id="own.outlier",
            tooltip="Go to the next outlier: in other code than most like it",
        ),
        Binding("N", "outlier(-1)", "Previous outlier", show=False, id="own.outlier-before"),
        Binding("tab", "other_pane", "Pane", show=False, id="own.pane", tooltip="Go to the other pane"),
        Binding("backspace", "back", "Back", show=False, id="own.back", tooltip="Go back to the previous stack"),
    ]

    def __init__(self) -> None:
        super().__init__(grouping=None)
        self.is_merged = False
        self.marked: set[str] = set()
        self.trail: list[Page] = []
        self.merged: MergedTree | None = None
        self._selected: str | None = None
        self._words = NO_WORDS
        self._found = 0

    # The view

    def compose_body(self) -> ComposeResult:
        with Container(id="panes"):
            with Vertical(id="tree", classes="pane"):
                yield Outline(id="all", empty="No stacks were read.")
            yield PagePane()

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Show the stacks; cursor, folds and page stay. At first the cursor is on a stack of the first finding."""
        self._show_tree()
        if not self.trail and self._selected is None and (vertex := first_stack(analysed)) is not None:
            self.trail = [Page(vertex=vertex)]
            self._follow(self.trail[0])
        self._show_page()

    def on_resize(self, event: events.Resize) -> None:
        """Place the panes side by side, or one below the other."""
        self.set_class(event.size.width < SIDE_BY_SIDE, "narrow")
        self.call_after_refresh(self._show_page)

    def filtered(self, text: str) -> int:
        """Show or merge only processes and stacks that contain the words in their names or frames."""
        self._words = TextFilter(text)
        self._redraw()
        return self._found if self._words else 0

    @property
    def _tree(self) -> Outline:
        return self.query_one("#all", Outline)

    @property
    def _page(self) -> Outline:
        return self.query_one(PagePane).outline

    def _show_tree(self) -> None:
        assert self.analysed is not None
        stacks, pane = self.analysed.stacks, self.query_one("#tree")
        if self.is_merged:
            self.merged = MergedTree.of(
                stacks, whole=self.is_whole, grouping=self.grouping, marked=self.marked, words=self._words
            )
            self._found = self.merged.root.count
            pane.border_title = self.merged.title(self.grouping, self.marked)
            self._tree.show(self.merged.lines())
        else:
            found = stacks.found(self._words) if self._words else None
            tree = ProcessTree(stacks, self.marked, found, self.changes)
            self.merged, self._found = None, len(found or ())
            pane.border_title = tree.title()
            self._tree.show(tree.lines())

    def _show_page(self) -> None:
        if self.analysed is not None:
            self.query_one(PagePane).show(self.analysed.stacks, self.merged, self.trail)

    def _redraw(self) -> None:
        """Show the tree again, and the page of the line under its cursor if the trail is empty."""
        if self.analysed is not None:
            self._show_tree()
            line = self._tree.cursor_line
            page = self._page_of(line.data if line else None)
            self.trail = self.trail or ([page] if page else [])
            self._show_page()
        self.refresh_bindings()

    # The page beside the tree

    @on(Outline.Highlighted, "#all")
    def follow_cursor(self, event: Outline.Highlighted) -> None:
        """Show the page of the line under the tree's cursor, and begin a new trail."""
        key = event.line.key if event.line else None
        if key == self._selected:
            return
        self._selected = key
        page = self._page_of(event.line.data if event.line else None)
        if page is not None:
            self.trail = [page]
            self._show_page()

    def _page_of(self, about: object) -> Page | None:
        """The page of a stack or branch; that of the first stack of a process."""
        if not isinstance(about, About):
            return None
        if about.path is not None:
            return Page(path=about.path)
        vertex = about.vertex
        if vertex is None and len(about.workers) == 1 and self.analysed is not None:
            vertex = self.analysed.stacks.first_of(about.workers[0])
        return Page(vertex=vertex) if vertex else None

    @on(Outline.Chosen, "#all")
    def enter_page(self, event: Outline.Chosen) -> None:
        """Go to the page of a stack; fold or unfold another line."""
        about = event.line.data
        if isinstance(about, About) and (about.vertex or (about.path and not event.line.has_children)):
            self._page.focus()
        else:
            event.outline.toggle(event.line)

    @on(Outline.Chosen, "#page")
    def follow_wait(self, event: Outline.Chosen) -> None:
        """Go to the target of the wait, or to the stack that the line names."""
        about = event.line.data
        if isinstance(about, About) and len(about.targets) > 1:
            event.outline.reveal([event.line.key, target_key(about.targets[0], about.prefix)])
        elif isinstance(about, About) and (vertex := about.targets[0] if about.targets else about.vertex):
            self._visit(vertex)
        else:
            event.outline.toggle(event.line)

    def action_back(self) -> None:
        """Go to the previous page, and from the first page to the tree."""
        if len(self.trail) > 1:
            self.trail.pop()
            self._follow(self.trail[-1])
            self._show_page()
        else:
            self._tree.focus()

    def _visit(self, vertex: Key) -> None:
        assert self.analysed is not None
        if self.analysed.stacks.pages.page(vertex) is None:
            self.notify("No stack was read for it.", severity="warning")
            return
        self.trail.append(Page(vertex=vertex))
        self._follow(self.trail[-1])
        self._show_page()

    def _follow(self, page: Page) -> None:
        """Select the page's stack in the tree by process, if it is there, and keep the trail."""
        if self.analysed is None or self.is_merged or page.vertex is None:
            return
        keys = stack_keys(self.analysed.stacks, page.vertex)
        line = self._tree.cursor_line
        if keys and (line is None or line.key != str(page.vertex)):
            before, self._selected = self._selected, str(page.vertex)
            if not self._tree.reveal(keys):
                self._selected = before

    # Keys

    def action_merge(self) -> None:
        self.is_merged = not self.is_merged
        self._selected = None
        self.merge_again()

    def choices(self) -> Iterator[SystemCommand]:
        return super().choices() if self.is_merged else iter(())

    def merge_again(self) -> None:
        """Show the tree again, and begin a new trail."""
        self.trail = []
        self._redraw()

    def action_mark(self) -> None:
        """Mark the workers of the line, or unmark them if all are marked."""
        workers = self._workers_of(self._tree.cursor_line)
        if workers:
            self.marked = self.marked - workers if workers <= self.marked else self.marked | workers
            self._redraw()

    def _workers_of(self, line: Line | None) -> set[str]:
        about = line.data if line else None
        if not isinstance(about, About):
            return set()
        if about.path is not None and self.merged:
            return {one.worker_id for one in self.merged.root.find(about.path).executions}
        return set(about.workers)

    @property
    def waits_vertex(self) -> Key | None:
        """The vertex of the stack that the page shows."""
        return self.trail[-1].vertex if self.trail else None

    @property
    def log_tails(self) -> Sequence[LogTail]:
        """The logs of the workers of the line in the tree."""
        workers = self._workers_of(self._tree.cursor_line)
        return tails_of_workers(self.analysed, sorted(workers)) if self.analysed else ()

    def action_outlier(self, by: int) -> None:
        places = [branch.path for branch in self.merged.outliers.places() if branch.path] if self.merged else []
        if not places:
            self.notify("No outliers: no execution is in other code than most like it.")
            return
        line = self._tree.cursor_line
        paths = {branch_key(path): path for path in places}
        self._tree.reveal(branch_keys(paths[following(list(paths), line.key if line else None, by)]))

    def action_other_pane(self) -> None:
        (self._tree if self._page.has_focus else self._page).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the actions on the merged tree only there."""
        if action in ("group", "whole", "outlier"):
            return self.is_merged
        return super().check_action(action, parameters)

    # Requests of the application and of other views

    def to_copy(self) -> str | None:
        """The page: the stack, or the branch."""
        page = self.trail[-1] if self.trail else None
        stack = self.analysed.stacks.pages.page(page.vertex) if self.analysed and page and page.vertex else None
        return stack_in_words(stack) if stack else self._page.as_text() or None

    def to_export(self) -> str | None:
        """The unfolded tree, then the page."""
        return f"{self._tree.as_text()}\n\n{self._page.as_text()}"

    def to_open(self) -> SourceLocation | None:
        """The line of code under the cursor, or the selected one of the page."""
        outline = self._page if self._page.has_focus else self._tree
        for one in (outline, self._page):
            about = one.cursor_line.data if one.cursor_line else None
            if isinstance(about, About) and about.location:
                return about.location
        return None

    def reveal(self, vertex: Key) -> bool:
        """Go to the stack of a vertex, in the tree by process."""
        if self.analysed is None or self.analysed.stacks.pages.page(vertex) is None:
            return False
        self.is_merged = False
        self._clear_filter()
        self.trail = [Page(vertex=vertex)]
        self._follow(self.trail[0])
        self._show_page()
        return True

    def reveal_branch(self, path: tuple[PathStep, ...], grouping: Grouping | None, *, is_whole: bool) -> None:
        """Go to a branch of the merged tree of all workers."""
        self.is_merged, self.grouping, self.is_whole, self.marked = True, grouping, is_whole, set()
        self.trail = []
        self._clear_filter()
        if path:
            self._tree.reveal(branch_keys(path))

    def _clear_filter(self) -> None:
        self._words = NO_WORDS
        self.action_clear()
        self._redraw()
