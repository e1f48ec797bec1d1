"""The Calls view: which drivers, actors and functions call which, with figures and waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from rich.console import Console
from rich.text import Text
from textual import events, work
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from dstack.analysis.history.call_nodes import By, NodeKey, NodeWait
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallEdge, CallExecutions, CallFigures, CallGraph, MethodCalls
from dstack.errors import as_dstack_error
from dstack.model.vertex_keys import Key
from dstack.report import calls_text
from dstack.report.rich_text import SafeText
from dstack.report.summaries import no_history
from dstack.tui.views.base import SORT, SORT_BACK, STACK, WAITS, OutlineView, following
from dstack.tui.widgets.outline import INDENT, Detail, Line, Outline
from dstack.words import SHOWN, plural, short_duration, size

COLUMNS_WIDTH = sum(column.width for column in calls_text.COLUMNS)
OPENED_EDGES = 12
"""A caller with more callees is folded at first."""
OPENED_CALLERS = 12
"""So many callers are unfolded at first."""

NO_CALLS = CallFigures()


@dataclass(frozen=True, slots=True)
class CallRow:
    """What a line is about: the calls of a node, of an edge or of one of its methods, or a wait."""

    source: NodeKey
    target: NodeKey | None = None
    method: str | None = None
    figures: CallFigures = NO_CALLS
    tasks: tuple[str, ...] = ()
    waits: tuple[NodeWait, ...] = ()
    is_wait: bool = False


def header(width: int, sorted_by: calls_text.Column) -> Text:
    """The titles of the columns, right-justified in so many cells; that of the order is marked."""
    text = SafeText().append("caller, and what it calls".ljust(max(0, width - COLUMNS_WIDTH))[: width - COLUMNS_WIDTH])
    for column in calls_text.COLUMNS:
        is_order = column is sorted_by
        title = f"▾{column.name}" if is_order else column.name
        text.append(title.rjust(column.width), "bold" if is_order else "")
    return text


@dataclass(frozen=True, slots=True)
class CallLines:
    """The lines of one graph; callers and callees with the largest values in the column ``sorted_by`` come first.

    Only calls that may match the ``words`` of a filter become lines: the outline then matches them exactly.
    """

    graph: CallGraph
    sorted_by: calls_text.Column
    words: tuple[str, ...] = ()

    def roots(self) -> list[Line]:
        """All nodes that call or wait."""
        graph = self.graph
        keys = [node.key for node in graph.nodes if node.key in graph.made or node.key in graph.waits_of]
        keys.sort(key=lambda key: -self.sorted_by.value(graph.made.get(key, NO_CALLS)))
        return [self._caller(key, is_open=number < OPENED_CALLERS) for number, key in enumerate(keys)]

    def _caller(self, key: NodeKey, *, is_open: bool) -> Line:
        edges, waits = self.graph.edges_of.get(key, ()), self.graph.waits_of.get(key, ())
        figures = self.graph.made.get(key, NO_CALLS)
        row = CallRow(key, figures=figures, waits=tuple(waits))
        name = _marks(waits).append(calls_text.node_title(self.graph, key), "bold")
        return Line(
            key=str(key),
            text=name,
            children=partial(self._below, key),
            is_open=is_open and len(edges) <= OPENED_EDGES,
            data=row,
            search_text=str(key),
            layout=_layout(name, figures),
        )

    def _below(self, key: NodeKey) -> list[Line]:
        waits = [self._wait(wait) for wait in self.graph.waits_of.get(key, ())]
        edges = [edge for edge in self.graph.edges_of.get(key, ()) if self._may_match(edge)]
        edges.sort(key=lambda edge: -self.sorted_by.value(edge.figures))
        return [*waits, *map(self._edge, edges)]

    def _may_match(self, edge: CallEdge) -> bool:
        if not self.words:
            return True
        text = self.graph.search_texts[edge.source, edge.target]
        return all(word in text for word in self.words)

    def _wait(self, wait: NodeWait) -> Line:
        mark, style = calls_text.wait_mark(wait)
        text = SafeText().append(f"{mark} ", style)
        if wait.source == wait.target:
            text.append(calls_text.own_wait(self.graph, wait))
        else:
            text.append(f"{calls_text.waits_for(wait)} ", style).append(
                calls_text.node_title(self.graph, wait.target), "bold"
            )
            text.append(f": {calls_text.wait_kinds(wait)}")
        text.append(f", {outcome}" if (outcome := calls_text.wait_outcome(wait)) else "", style)
        row = CallRow(wait.source, wait.target, waits=(wait,), is_wait=True)
        return Line(f"{wait.source} waits for {wait.target}", text, data=row)

    def _edge(self, edge: CallEdge) -> Line:
        waits = [wait for wait in self.graph.waits_of.get(edge.source, ()) if wait.target == edge.target]
        name = _marks(waits).append("→ ", "dim")
        name.append(
            "itself" if edge.source == edge.target else calls_text.edge_title(self.graph, edge), _style(edge.figures)
        )
        has_methods = edge.target.kind == "actor" and len(edge.methods) > 1
        return Line(
            key=f"{edge.source} calls {edge.target}",
            text=name,
            children=partial(self._methods, edge) if has_methods else (),
            data=CallRow(edge.source, edge.target, None, edge.figures, edge.open_tasks, tuple(waits)),
            search_text=f"{edge.target} {' '.join(one.method for one in edge.methods)}",
            layout=_layout(name, edge.figures),
        )

    def _methods(self, edge: CallEdge) -> list[Line]:
        methods = sorted(edge.methods, key=lambda one: -self.sorted_by.value(one.figures))
        return [self._method(edge, one) for one in methods]

    def _method(self, edge: CallEdge, one: MethodCalls) -> Line:
        name = SafeText().append(f".{one.method}", _style(one.figures))
        row = CallRow(edge.source, edge.target, one.method, one.figures, one.open_tasks)
        key = f"{edge.source} calls {edge.target}.{one.method}"
        return Line(key, name, data=row, layout=_layout(name, one.figures))

    def tasks(self, row: CallRow) -> Iterator[str]:
        """The unfinished tasks of a line, running ones first for each edge."""
        if row.target is not None:
            return iter(row.tasks)
        return (task for edge in self.graph.edges_of.get(row.source, ()) for task in edge.open_tasks)

    # Details

    def details(self, row: CallRow) -> Iterator[Text]:
        """The figures of a line in words, and its waits."""
        if not row.is_wait:
            yield self._title(row)
            yield from _figures(row.figures)
            put = self.graph.node[row.source].put_bytes if row.target is None else 0
            if put:
                yield SafeText(f"{size(put)} of live objects that it has made by ray.put", "dim")
        for wait in row.waits:
            mark, style = calls_text.wait_mark(wait)
            text = SafeText().append(f"{mark} ", style).append(calls_text.wait_in_words(self.graph, wait))
            yield text.append(f", {outcome}" if (outcome := calls_text.wait_outcome(wait)) else "", style)

    def _title(self, row: CallRow) -> Text:
        source = calls_text.node_title(self.graph, row.source)
        calls = plural(row.figures.attempts, "call")
        retries = row.figures.attempts - row.figures.tasks
        retried = f", {plural(retries, 'of them a retry', 'of them retries')}" if retries else ""
        if row.target is None:
            return SafeText().append(source, "bold").append(f" has made {calls}{retried}")
        target = calls_text.node_title(self.graph, row.target)
        method = f"{self.graph.node[row.target].title}.{row.method}" if row.method else target
        return SafeText().append(f"{source} → {method}", "bold").append(f": {calls}{retried}")


def _layout(name: Text, figures: CallFigures) -> Callable[[int, Console], Sequence[Text]]:
    """One row: the name, cut off where the columns begin, and the columns at the right edge."""

    def rows(width: int, _: Console) -> Sequence[Text]:
        own = name.copy()
        own.truncate(max(INDENT, width - COLUMNS_WIDTH), overflow="ellipsis", pad=True)
        for column in calls_text.COLUMNS:
            own.append(column.cell(figures) if figures.attempts else " " * column.width, _cell_style(column, figures))
        return [own]

    return rows


def _cell_style(column: calls_text.Column, figures: CallFigures) -> str:
    if column.name == "fail" and figures.failed:
        return "bold red"
    if column.name == "/s" and figures.is_frequent:
        return "bold yellow"
    if column.name in ("pend", "run"):
        return "cyan"
    return "" if column.name == "calls" else "dim"


def _style(figures: CallFigures) -> str:
    return "red" if figures.failed else ""


def _marks(waits: Sequence[NodeWait]) -> SafeText:
    """The mark of the worst of these waits."""
    text = SafeText()
    if waits:
        worst = max(waits, key=lambda wait: (wait.deadlocked > 0, wait.blocked > 0, not wait.is_inferred))
        mark, style = calls_text.wait_mark(worst)
        text.append(f"{mark} ", style)
    return text


def _figures(figures: CallFigures) -> Iterator[Text]:
    """``116 finished, 1 failed; mean 178 ms, longest 301 ms; 12 calls/s; 14 MiB of live objects``."""
    if counts := calls_text.counts_by_state(figures):
        yield SafeText(counts)
    parts = []
    if figures.mean_s is not None:
        parts.append(f"mean {short_duration(figures.mean_s)}")
    if figures.max_s is not None:
        parts.append(f"longest {calls_text.longest(figures)}" + (", still running" if figures.is_max_open else ""))
    if calls_text.rate(figures):
        frequent = ": a high rate, as of a loop that polls" if figures.is_frequent else ""
        parts.append(f"{calls_text.rate(figures).rstrip('!')} calls/s{frequent}")
    if figures.live_bytes:
        parts.append(f"{size(figures.live_bytes)} of live objects")
    if parts:
        yield SafeText(" · ".join(parts), "dim")


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

    DEFAULT_CSS = """
    CallsView Outline { scrollbar-size-horizontal: 0; }
    CallsView #head { height: auto; max-height: 3; padding: 0 1; }
    CallsView #columns { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        SORT,
        SORT_BACK,
        Binding("i", "instances", "Actors", id="own.instances", tooltip="Show each actor, or one line for each class"),
        STACK,
        WAITS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.by: By = "class"
        self.sorted_by: calls_text.Column = calls_text.COLUMNS[0]
        self.graph: CallGraph | None = None
        self._built: dict[By, CallGraph] = {}
        self._lines: CallLines | None = None
        self._executions: CallExecutions | None = None
        self._has_requested = False
        self._trouble = ""
        self._lack = ""

    def compose_body(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="columns")
        yield Outline(empty="No calls.")
        yield Detail()

    # Snapshots

    def show(self, analysed: AnalysedSnapshot) -> None:
        """Build the graph; cursor and folds stay. Request the history if the snapshot has none."""
        self._built.clear()
        self._executions = CallExecutions(analysed)
        self._lack = no_history(analysed.snapshot) if analysed.snapshot.lack_of_events else ""
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
        text = SafeText().append(calls_text.summary(self.graph), "bold").append(f"  {NODES[self.by]}", "dim")
        notes = [self._missing()] if self.graph.ended_at is None else calls_text.remarks(self.graph)
        return text.append(f"\n{' '.join(notes)}" if notes else "", "italic")

    def _missing(self) -> str:
        """Why there is no history."""
        if self._lack:
            return f"{self._lack} Only calls that have not ended are shown."
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
        self.call_after_refresh(self._show_head)

    # Keys

    def action_sort(self, by: int) -> None:
        self._sort_by(following(calls_text.COLUMNS, self.sorted_by, by))

    def _sort_by(self, column: calls_text.Column) -> None:
        self.sorted_by = column
        self._draw()

    def action_instances(self) -> None:
        self.by = "class" if self.by == "instance" else "instance"
        if self.analysed is not None:
            self._start(self.analysed)

    def choices(self) -> Iterator[SystemCommand]:
        for column in calls_text.COLUMNS:
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
    def stack_vertex(self) -> Key | None:
        """The execution of a running call of the line, or of its waiter."""
        row = self._row
        if row is None or self._executions is None:
            return None
        waiters = (key for wait in row.waits for key in wait.waiters)
        return self._executions.running(self._tasks) or self._executions.with_stack(waiters)

    @property
    def waits_vertex(self) -> Key | None:
        """An unfinished call of the line that waits, or the waiter of its wait."""
        row = self._row
        if row is None or self._executions is None:
            return None
        waiters = (key for wait in row.waits for key in wait.waiters)
        return self._executions.waiting(self._tasks) or next(waiters, None)

    def _details(self) -> Iterable[Text]:
        return self._lines.details(self._row) if self._lines and self._row else ()
