"""A call graph as lines of an outline: callers, what they call, and their methods, with figures in aligned columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.text import Text

from dstack.analysis.history.call_nodes import NodeKey, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallFigures, CallGraph, MethodCalls
from dstack.report.calls_text import (
    COLUMNS,
    Column,
    counts_by_state,
    edge_title,
    longest,
    node_title,
    own_wait,
    rate,
    wait_in_words,
    wait_kinds,
    wait_mark,
    wait_outcome,
    waits_for,
)
from dstack.report.rich_text import SafeText
from dstack.tui.widgets.outline import INDENT, Line
from dstack.words import plural, short_duration, size

COLUMNS_WIDTH = sum(column.width for column in COLUMNS)
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


def header(width: int, sorted_by: Column) -> Text:
    """The titles of the columns, right-justified in so many cells; that of the order is marked."""
    text = SafeText().append("caller, and what it calls".ljust(max(0, width - COLUMNS_WIDTH))[: width - COLUMNS_WIDTH])
    for column in COLUMNS:
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
    sorted_by: Column
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
        name = _marks(waits).append(node_title(self.graph, key), "bold")
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
        mark, style = wait_mark(wait)
        text = SafeText().append(f"{mark} ", style)
        if wait.source == wait.target:
            text.append(own_wait(self.graph, wait))
        else:
            text.append(f"{waits_for(wait)} ", style).append(node_title(self.graph, wait.target), "bold")
            text.append(f": {wait_kinds(wait)}")
        text.append(f", {outcome}" if (outcome := wait_outcome(wait)) else "", style)
        row = CallRow(wait.source, wait.target, waits=(wait,), is_wait=True)
        return Line(f"{wait.source} waits for {wait.target}", text, data=row)

    def _edge(self, edge: CallEdge) -> Line:
        waits = [wait for wait in self.graph.waits_of.get(edge.source, ()) if wait.target == edge.target]
        name = _marks(waits).append("→ ", "dim")
        name.append("itself" if edge.source == edge.target else edge_title(self.graph, edge), _style(edge.figures))
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
            mark, style = wait_mark(wait)
            text = SafeText().append(f"{mark} ", style).append(wait_in_words(self.graph, wait))
            yield text.append(f", {outcome}" if (outcome := wait_outcome(wait)) else "", style)

    def _title(self, row: CallRow) -> Text:
        source = node_title(self.graph, row.source)
        calls = plural(row.figures.attempts, "call")
        retries = row.figures.attempts - row.figures.tasks
        retried = f", {plural(retries, 'of them a retry', 'of them retries')}" if retries else ""
        if row.target is None:
            return SafeText().append(source, "bold").append(f" has made {calls}{retried}")
        target = node_title(self.graph, row.target)
        method = f"{self.graph.node[row.target].title}.{row.method}" if row.method else target
        return SafeText().append(f"{source} → {method}", "bold").append(f": {calls}{retried}")


def _layout(name: Text, figures: CallFigures) -> Callable[[int, Console], Sequence[Text]]:
    """One row: the name, cut off where the columns begin, and the columns at the right edge."""

    def rows(width: int, _: Console) -> Sequence[Text]:
        own = name.copy()
        own.truncate(max(INDENT, width - COLUMNS_WIDTH), overflow="ellipsis", pad=True)
        for column in COLUMNS:
            own.append(column.cell(figures) if figures.attempts else " " * column.width, _cell_style(column, figures))
        return [own]

    return rows


def _cell_style(column: Column, figures: CallFigures) -> str:
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
        mark, style = wait_mark(worst)
        text.append(f"{mark} ", style)
    return text


def _figures(figures: CallFigures) -> Iterator[Text]:
    """``116 finished, 1 failed; mean 178 ms, longest 301 ms; 12 calls/s; 14 MiB of live objects``."""
    if counts := counts_by_state(figures):
        yield SafeText(counts)
    parts = []
    if figures.mean_s is not None:
        parts.append(f"mean {short_duration(figures.mean_s)}")
    if figures.max_s is not None:
        parts.append(f"longest {longest(figures)}" + (", still running" if figures.is_max_open else ""))
    if rate(figures):
        frequent = ": a high rate, as of a loop that polls" if figures.is_frequent else ""
        parts.append(f"{rate(figures).rstrip('!')} calls/s{frequent}")
    if figures.live_bytes:
        parts.append(f"{size(figures.live_bytes)} of live objects")
    if parts:
        yield SafeText(" · ".join(parts), "dim")
