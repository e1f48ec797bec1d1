"""The stacks: process by process or all merged, with the stack beside, and from each wait on to what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from dstack.analysis.stacks.app_threads import Execution, Running
from dstack.analysis.stacks.app_threads import Place as Step
from dstack.analysis.stacks.outliers import Marked
from dstack.analysis.stacks.stack_tree import Branch, Grouping, Words, grouping_in_words, merge
from dstack.report.safe_text import SafeText
from dstack.tui.source import Look
from dstack.tui.views.base import Choice, Place
from dstack.tui.views.grouped_view import GROUP, WHOLE, GroupedView
from dstack.tui.views.stacks.lines import About
from dstack.tui.views.stacks.pages import branch_page, onward_key, stack_in_words, stack_page
from dstack.tui.views.stacks.trees import Processes, Tree, branch_key, child_key
from dstack.tui.widgets.outline import Outline
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import ChildThreadKey, Key
from dstack.words import plural

SIDE_BY_SIDE = 100
"""So many columns are wide enough for two panes beside each other."""
SHOWN_TRAIL = 4


@dataclass(frozen=True)
class Page:
    """What is shown beside: the stack of a vertex, or a branch of the merged tree."""

    vertex: Key | None = None
    path: tuple[Step, ...] | None = None
    name: str = ""


class StacksView(GroupedView):
    """All stacks: by node, process and thread, or merged into one tree.

    Beside the tree is the selected stack, with its source. Enter on a wait goes to the stack that it depends on, on
    any node; Backspace goes back.
    """

    CSS_PATH = "stacks.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "m", "merge", "Merge", id="own.merge", tooltip="Merge all stacks into one tree, or list them by process"
        ),
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
        self.is_whole = False
        self.marked: set[str] = set()
        self.trail: list[Page] = []
        self._root: Branch = merge(())
        self._elsewhere = Marked(self._root, ())
        self._at: str | None = None
        self._shown: Page | None = None
        self._words = Words("")
        self._found: dict[str, set[Key]] | None = None

    # The view

    def compose_body(self) -> ComposeResult:
        """The tree, and the page beside it."""
        with Container(id="panes"):
            with Vertical(id="tree", classes="pane"):
                yield Outline(id="all", empty="No stacks were read.")
            with Vertical(id="beside", classes="pane"):
                yield Outline(id="page", empty="")

    def show(self, look: Look) -> None:
        """Shows the look's stacks, with cursor, folds and page where they were."""
        self._show_tree()
        self._show_page()

    def on_resize(self, event: events.Resize) -> None:
        """Puts the panes beside or below each other."""
        self.set_class(event.size.width < SIDE_BY_SIDE, "narrow")
        self.call_after_refresh(self._show_page)

    def filtered(self, text: str) -> int:
        """Shows or merges only the processes and stacks that have these words, in their names or frames."""
        self._words = Words(text)
        self._redraw()
        if not self._words or self.look is None:
            return 0
        return self._root.count if self.is_merged else len(self._found or ())

    @property
    def _tree(self) -> Outline:
        return self.query_one("#all", Outline)

    @property
    def _page(self) -> Outline:
        return self.query_one("#page", Outline)

    def _show_tree(self) -> None:
        assert self.look is not None
        pane = self.query_one("#tree")
        if not self.is_merged:
            filtered = ", filtered" * bool(self._words)
            marked = f", {len(self.marked):,} marked" if self.marked else ""
            pane.border_title = f"By process{marked}{filtered}"
            self._found = self.look.stacks.found(self._words) if self._words else None
            self._tree.show(Processes(self.look.stacks, self.marked, self._found).lines())
            return
        running = self.look.stacks.running(whole=self.is_whole)
        self._root = merge(running.executions, by=self.grouping, where=self._is_chosen)
        self._elsewhere = Marked(self._root, self.look.stacks.outliers(whole=self.is_whole))
        pane.border_title = " ".join(self._title(running))
        self._tree.show(Tree(self.look.stacks, self._root, self._elsewhere, self._words).lines())

    def _title(self, found: Running) -> Iterator[str]:
        """What is merged, and what is left out of it."""
        yield "Merged"
        if self.grouping:
            yield grouping_in_words(self.grouping)
        yield plural(self._root.count, "stack") + self._marks_in_words() + ", filtered" * bool(self._words)
        if found.left_out:
            yield f"· left out: {plural(found.left_out, 'thread')} of Ray"
        if found.folded:
            yield f"· folded: {plural(found.folded, 'library frame')}"

    def _is_chosen(self, execution: Execution) -> bool:
        is_marked = not self.marked or execution.worker_id in self.marked
        return is_marked and (not self._words or self._words.within(execution))

    def _marks_in_words(self) -> str:
        return f" of {plural(len(self.marked), 'marked worker')}" if self.marked else ""

    # The page beside

    @on(Outline.Highlighted, "#all")
    def follow_cursor(self, event: Outline.Highlighted) -> None:
        """Shows the page of the line under the tree's cursor, and begins a new trail."""
        key = event.line.key if event.line else None
        if key == self._at:
            return
        self._at = key
        page = self._page_of(event.line.data if event.line else None)
        if page is not None:
            self.trail = [page]
            self._show_page()

    def _page_of(self, about: object) -> Page | None:
        """A stack, a branch, or of a process its first stack."""
        if not isinstance(about, About):
            return None
        if about.path is not None:
            return Page(path=about.path)
        vertex = about.vertex
        if vertex is None and len(about.workers) == 1 and self.look is not None:
            vertex = self.look.stacks.first_of(about.workers[0])
        return Page(vertex=vertex) if vertex else None

    @on(Outline.Chosen, "#all")
    def into_page(self, event: Outline.Chosen) -> None:
        """Goes into the page of a stack, or folds what is none."""
        about = event.line.data
        if isinstance(about, About) and (about.vertex or (about.path and not event.line.has_children)):
            self._page.focus()
        else:
            event.outline.toggle(event.line)

    @on(Outline.Chosen, "#page")
    def onward(self, event: Outline.Chosen) -> None:
        """Goes to what the line waits for, or into the stack it names."""
        about = event.line.data
        if isinstance(about, About) and len(about.onward) > 1:
            event.outline.reveal([event.line.key, onward_key(about.onward[0], about.under)])
        elif isinstance(about, About) and about.onward:
            self._go(about.onward[0])
        elif isinstance(about, About) and about.vertex:
            self._go(about.vertex)
        else:
            event.outline.toggle(event.line)

    def action_back(self) -> None:
        """To the page before, and from the first to the tree."""
        if len(self.trail) > 1:
            self.trail.pop()
            self._follow(self.trail[-1])
            self._show_page()
        else:
            self._tree.focus()

    def _go(self, vertex: Key) -> None:
        assert self.look is not None
        if self.look.stacks.stack(vertex) is None:
            self.notify("No stack was read for it.", severity="warning")
            return
        page = Page(vertex=vertex)
        self.trail.append(page)
        self._follow(page)
        self._show_page()

    def _follow(self, page: Page) -> None:
        """Takes the tree's cursor along, where the tree has that stack."""
        if self.is_merged or page.vertex is None:
            return
        keys = self._keys_to(page.vertex)
        line = self._tree.cursor_line
        if keys and (line is None or line.key != str(page.vertex)):
            before, self._at = self._at, str(page.vertex)
            if not self._tree.reveal(keys):
                self._at = before

    def _keys_to(self, vertex: Key) -> list[str]:
        assert self.look is not None
        place = self.look.stacks.path_to(vertex)
        if place is None:
            return []
        below = [child_key(vertex.worker_id, vertex.pid)] if isinstance(vertex, ChildThreadKey) else []
        return [f"node/{place[0]}", f"worker/{place[1]}", *below, str(vertex)]

    def _show_page(self) -> None:
        if self.look is None:
            return
        page = self.trail[-1] if self.trail else Page(path=())
        pane = self.query_one("#beside")
        stacks = self.look.stacks
        if page.vertex is not None:
            stack = stacks.stack(page.vertex)
            if stack is None:
                pane.border_title = "Stack"
                self._page.show([])
                return
            pane.border_title = SafeText(self._trail_in_words())
            self._page.show(stack_page(stacks, stack))
            if page != self._shown:
                self._go_to(f"frame/{stack.call_at}" if stack.call_at is not None else self._first_place())
        else:
            branch = self._root.find(page.path or ()) if self.is_merged else None
            pane.border_title = "Branch" if self.is_merged else "Stack"
            odd = stacks.outliers(whole=self.is_whole)
            self._page.show(branch_page(stacks, self._root, branch, odd) if branch else [])
            if page != self._shown:
                self._page.action_first()
        self._shown = page if self._page.size.height else None

    def _go_to(self, key: str) -> None:
        """Puts the page's cursor on a line, and shows the page from its beginning where that is on the screen then."""
        row = self._page.row_of(key)
        if row is not None and self._page.reveal([key]) and row < self._page.size.height:
            self._page.scroll_to(y=0, animate=False, force=True)

    def _first_place(self) -> str:
        lines = (line.key for _, line in self._page.visible_lines if isinstance(line.data, About) and line.data.place)
        return next(lines, "who")

    def _trail_in_words(self) -> str:
        assert self.look is not None
        found = [self.look.stacks.stack(page.vertex) if page.vertex else None for page in self.trail]
        words = " › ".join(stack.name if stack else "branch" for stack in found[-SHOWN_TRAIL:])
        before = "… › " if len(found) > SHOWN_TRAIL else ""
        return f"{before}{words}"

    # Keys

    def action_merge(self) -> None:
        """All in one tree, or process by process."""
        self.is_merged = not self.is_merged
        self.trail = []
        self._at = None
        self._redraw()

    def choices(self) -> Iterator[Choice]:
        """The ways of grouping the merged tree."""
        return super().choices() if self.is_merged else iter(())

    def regroup(self) -> None:
        """Merges in other groups, and begins a new trail."""
        self.trail = []
        self._redraw()

    def action_whole(self) -> None:
        """Whole stacks, or only the application's own frames."""
        self.is_whole = not self.is_whole
        self.trail = []
        self._redraw()

    def action_mark(self) -> None:
        """Marks the workers of the line, or unmarks them if all were."""
        line = self._tree.cursor_line
        workers = self._workers_of(line)
        if workers:
            self.marked = self.marked - workers if workers <= self.marked else self.marked | workers
            self._redraw()

    def _workers_of(self, line: Line | None) -> set[str]:
        about = line.data if line else None
        if not isinstance(about, About):
            return set()
        if about.path is not None:
            return {one.worker_id for one in self._root.find(about.path).executions}
        return set(about.workers)

    def action_outlier(self, by: int) -> None:
        """To the next branch of the merged tree in which an outlier ends."""
        places = [branch.path for branch in self._elsewhere.places() if branch.path]
        if not places:
            self.notify("No outliers: no execution is in other code than most like it.")
            return
        line = self._tree.cursor_line
        keys = [branch_key(path) for path in places]
        at = keys.index(line.key) if line and line.key in keys else -1 if by > 0 else 0
        path = places[(at + by) % len(places)]
        self._tree.reveal([branch_key(path[:depth]) for depth in range(1, len(path) + 1)])

    def action_other_pane(self) -> None:
        """To the page, or to the tree."""
        (self._tree if self._page.has_focus else self._page).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is about the merged tree is offered there."""
        return self.is_merged if action in ("group", "whole", "outlier") else True

    def _redraw(self) -> None:
        if self.look is not None:
            self._show_tree()
            line = self._tree.cursor_line
            page = self._page_of(line.data if line else None)
            self.trail = self.trail or ([page] if page else [])
            self._show_page()
        self.refresh_bindings()

    # What it can be asked for

    def to_copy(self) -> str | None:
        """The page beside: the stack, or the branch."""
        page = self.trail[-1] if self.trail else None
        stack = self.look.stacks.stack(page.vertex) if self.look and page and page.vertex else None
        return stack_in_words(stack) if stack else self._page.as_text() or None

    def to_export(self) -> str | None:
        """The tree as it is unfolded, then the page."""
        return f"{self._tree.as_text()}\n\n{self._page.as_text()}"

    def to_open(self) -> Place | None:
        """The line of code under the cursor, or the one that the page is at."""
        outline = self._page if self._page.has_focus else self._tree
        for one in (outline, self._page):
            about = one.cursor_line.data if one.cursor_line else None
            if isinstance(about, About) and about.place:
                return about.place
        return None

    def reveal(self, vertex: Key) -> bool:
        """Goes to the stack of a vertex, process by process."""
        if self.look is None or self.look.stacks.stack(vertex) is None:
            return False
        self.is_merged = False
        self._show_all()
        self.trail = [Page(vertex=vertex)]
        self._follow(self.trail[0])
        self._show_page()
        return True

    def _show_all(self) -> None:
        """Shows the tree anew, without any filter."""
        self._words = Words("")
        self.action_clear()
        self._redraw()

    def reveal_branch(self, path: tuple[Step, ...], grouping: Grouping | None, *, is_whole: bool) -> None:
        """Goes to a branch of the merged tree of all workers."""
        self.is_merged, self.grouping, self.is_whole, self.marked = True, grouping, is_whole, set()
        self.trail = []
        self._show_all()
        if path:
            self._tree.reveal([branch_key(path[:depth]) for depth in range(1, len(path) + 1)])
