"""The Calls view: which drivers, actors and functions call which, with figures and waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from dstack.analysis.history.call_nodes import By
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallExecutions, CallGraph
from dstack.errors import as_dstack_error
from dstack.model.vertex_keys import Key
from dstack.report.calls_text import COLUMNS, Column, remarks, summary
from dstack.report.rich_text import SafeText
from dstack.tui.views.base import OutlineView
from dstack.tui.views.calls_lines import CallLines, CallRow, header
from dstack.tui.widgets.detail import Detail
from dstack.tui.widgets.outline import Outline
from dstack.words import SHOWN

NODES: dict[By, str] = {"class": "by class", "instance": "by actor"}
READING = "Reading the history of tasks; until then only calls that have not ended are shown."
FROZEN = "This snapshot has no history of tasks; space shows the newest, which has it."
MISSING = "This snapshot has no history of tasks: only calls that have not ended are shown."
COUNTING = "Counting calls …"


@dataclass
class Built(Message):
    """The graph of a snapshot, or the reason why there is none, from the thread that builds it."""

    analysed: AnalysedSnapshot
    by: By
    graph: CallGraph | None
    reason: str = ""


class CallsView(OutlineView):
    """What calls what. Each caller has below it what it calls, and below an actor class its methods.

    Columns: calls made, calls per second (! if that is a high rate, as of a loop that polls), pending, running and
    failed calls, mean and longest duration (≥ if that call still runs), and the size of the live objects that the calls
    have made. Marks are waits of this snapshot: ✖ in a deadlock, ■ never proceeds, … may end, ? may
    wait for this or for something else.
    """

    CSS = """
    CallsView Outline { scrollbar-size-horizontal: 0; }
    CallsView #head { height: auto; max-height: 3; padding: 0 1; }
    CallsView #columns { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "sort(1)", "Sort", id="own.sort", tooltip="Sort by the next column"),
        Binding("C", "sort(-1)", "Sort back", show=False, id="own.sort-back", tooltip="Sort by the column before"),
        Binding("i", "instances", "Actors", id="own.instances", tooltip="Show each actor, or one line for each class"),
        Binding("x", "stack", "Stack", id="own.stack", tooltip="Go to the stack of a running call, or of the waiter"),
        Binding("w", "waits", "Waits", id="own.waits", tooltip="Go to its entry in the Waits view"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.by: By = "class"
        self.sorted_by: Column = COLUMNS[0]
        self.graph: CallGraph | None = None
        self._built: dict[By, CallGraph] = {}
        self._lines: CallLines | None = None
        self._executions: CallExecutions | None = None
        self._has_requested = False
        self._trouble = ""

    def compose_body(self) -> ComposeResult:
        """The summary, the titles of the columns, the outline, and the details of the line under the cursor."""
        yield Static(id="head")
        yield Static(id="columns")
        yield Outline(empty="No calls.")
        yield Detail()

    # Snapshots

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Build the graph; cursor and folds stay. Request the history if the snapshot has none."""
        self._built.clear()
        self._executions = CallExecutions(analysed)
        if analysed.snapshot.history is None and not self._has_requested:
            self._has_requested = self.host.request_history()
        self._start(analysed)

    def _start(self, analysed: AnalysedSnapshot) -> None:
        """Show the graph if it is built, else build it."""
        self.graph, self._trouble = self._built.get(self.by), ""
        if self.graph is None:
            self._build(analysed, self.by)
        self._draw()

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _build(self, analysed: AnalysedSnapshot, by: By) -> None:
        """Build the graph. Runs in a thread, so it touches no widget."""
        try:
            graph = CallGraph.of(analysed, by=by)
            _ = graph.made, graph.waits_of, graph.node, graph.search_texts  # computed here, not when they are drawn
            result = Built(analysed, by, graph)
        except Exception as error:
            result = Built(analysed, by, None, str(as_dstack_error(error)))
        self.post_message(result)

    def on_built(self, message: Built) -> None:
        """Show the graph unless another one is wanted meanwhile."""
        if message.analysed is not self.analysed:
            return
        if message.graph is not None:
            self._built[message.by] = message.graph
        if message.by == self.by:
            self.graph, self._trouble = message.graph, message.reason
            self._draw()

    def _draw(self) -> None:
        """Show the lines of the graph; those of the last one stay until it is built."""
        if self.graph is not None:
            self._lines = CallLines(self.graph, self.sorted_by, tuple(self.filter_text.casefold().split()))
            self._outline.show(self._lines.roots())
            self._show_details()
        self._show_head()

    def _show_head(self) -> None:
        self.query_one("#head", Static).update(self._head())
        width = self._outline.scrollable_size.width
        self.query_one("#columns", Static).update(header(width, self.sorted_by) if width else "")

    def _head(self) -> Text:
        """The summary, or why there is none."""
        if self._trouble:
            return SafeText(f"✖ {self._trouble}", "yellow")
        if self.graph is None:
            return SafeText(COUNTING, "italic")
        text = SafeText().append(summary(self.graph), "bold").append(f"  {NODES[self.by]}", "dim")
        notes = [self._missing()] if self.graph.ended_at is None else remarks(self.graph)
        return text.append(f"\n{' '.join(notes)}" if notes else "", "italic")

    def _missing(self) -> str:
        """Why there is no history."""
        if not self._has_requested:
            return f"{MISSING} Take one with: dstack snapshot -o FILE"
        return FROZEN if self.host.status.is_frozen else READING

    def refresh_top(self) -> None:
        """Show the status, also that of the requested history."""
        super().refresh_top()
        if self.is_mounted and self.graph is not None and self.graph.ended_at is None and self.query("#head"):
            self._show_head()

    def filtered(self, text: str) -> int:
        """Show only lines that contain all words, with their callers and methods; return how many match."""
        self._draw()
        return super().filtered(text)

    def on_resize(self, _: events.Resize) -> None:
        """Align the titles with the columns."""
        self.call_after_refresh(self._show_head)

    # Keys

    def on_outline_chosen(self, event: Outline.Chosen) -> None:
        """Fold or unfold the line; go to the waits or the stack of a line without children."""
        if event.line.has_children:
            event.outline.toggle(event.line)
        elif self._row is not None and self._row.is_wait:
            self.action_waits()
        else:
            self.action_stack()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that do not apply to the line."""
        if action == "stack":
            return self._running_call is not None
        if action == "waits":
            return self._waiting_call is not None
        return True

    def action_sort(self, by: int) -> None:
        """Sort by another column."""
        self._sort_by(COLUMNS[(COLUMNS.index(self.sorted_by) + by) % len(COLUMNS)])

    def _sort_by(self, column: Column) -> None:
        self.sorted_by = column
        self._draw()

    def action_instances(self) -> None:
        """Switch between classes and single actors."""
        self.by = "class" if self.by == "instance" else "instance"
        if self.analysed is not None:
            self._start(self.analysed)

    def action_stack(self) -> None:
        """Go to the stack of a running call, or of what waits."""
        if self._running_call is not None:
            self.host.go_to("stacks", self._running_call)

    def action_waits(self) -> None:
        """Go to an entry in the Waits view."""
        if self._waiting_call is not None:
            self.host.go_to("waits", self._waiting_call)

    def choices(self) -> Iterator[SystemCommand]:
        """One for each column."""
        for column in COLUMNS:
            yield SystemCommand(f"Sort by {column.name}", "Sort the calls", partial(self._sort_by, column))

    # Requests of the application

    def to_copy(self) -> str | None:
        """The details of the line, with the ids of its unfinished tasks."""
        if self._row is None:
            return None
        tasks = [f"Task {task_id}" for task_id in islice(self._tasks, SHOWN)]
        return "\n".join([*(text.plain for text in self._details()), *tasks])

    def to_export(self) -> str | None:
        """The summary and all unfolded lines."""
        if self._lines is None:
            return None
        titles = header(self._outline.scrollable_size.width, self.sorted_by).plain
        return "\n".join([self._head().plain, titles, self._outline.as_text()])

    def _path_to(self, vertex: Key) -> Sequence[str]:
        """The caller that waits, and its wait."""
        for wait in self.graph.waits if self.graph else ():
            if vertex in wait.waiters:
                return [str(wait.source), f"{wait.source} waits for {wait.target}"]
        return ()

    @property
    def _row(self) -> CallRow | None:
        return self._data if isinstance(self._data, CallRow) else None

    @property
    def _tasks(self) -> Iterable[str]:
        """The unfinished tasks of the line."""
        return self._lines.tasks(self._row) if self._lines and self._row else ()

    @property
    def _running_call(self) -> Key | None:
        """The execution of a running call of the line, or of its waiter."""
        row = self._row
        if row is None or self._executions is None:
            return None
        waiters = (key for wait in row.waits for key in wait.waiters)
        return self._executions.running(self._tasks) or self._executions.with_stack(waiters)

    @property
    def _waiting_call(self) -> Key | None:
        row = self._row
        if row is None or self._executions is None:
            return None
        waiters = (key for wait in row.waits for key in wait.waiters)
        return self._executions.waiting(self._tasks) or next(waiters, None)

    def _details(self) -> Iterable[Text]:
        return self._lines.details(self._row) if self._lines and self._row else ()
