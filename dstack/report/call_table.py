"""A call graph as text: a table of callers with what they call, and the waits between them."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dstack.analysis.views.call_graph import CallEdge, CallGraph, CallNode, is_frequent
from dstack.report.call_columns import (
    COLUMNS,
    edge_title,
    node_title,
    remarks,
    summary,
    wait_in_words,
    wait_mark,
    wait_outcome,
)
from dstack.report.safe_text import SafeText
from dstack.words import plural, size

WIDTH = 100
NARROWEST_NAME, WIDEST_NAME = 24, 60
SHOWN_CALLERS = 30
SHOWN_EDGES = 10
SHOWN_METHODS = 4
SHOWN_WAITS = 20


def call_table(graph: CallGraph, width: int = WIDTH) -> str:
    """The graph as plain text, so many columns wide."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None, force_terminal=False)
    print_call_table(console, graph)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def print_call_table(console: Console, graph: CallGraph) -> None:
    """Print the summary, the waits, the table and what is missing; as wide as the console."""
    console.print(SafeText(summary(graph), "bold"), soft_wrap=True)
    for line in _waits(graph):
        console.print(line, soft_wrap=True)
    callers = [node for node in graph.nodes if graph.edges_of.get(node.key)]
    if callers:
        console.print()
        console.print(_table(graph, callers[:SHOWN_CALLERS], console.width))
    if rest := callers[SHOWN_CALLERS:]:
        console.print(SafeText(f"and {plural(len(rest), 'more caller')}: --format json has all", "dim"))
    notes = [*_legend(graph), *remarks(graph)]
    if notes:
        console.print()
    for note in notes:
        console.print(SafeText(note, "dim"), soft_wrap=True)


def _waits(graph: CallGraph) -> Iterator[Text]:
    for wait in graph.waits[:SHOWN_WAITS]:
        mark, style = wait_mark(wait)
        outcome = wait_outcome(wait)
        text = SafeText().append(f"{mark} ", style).append(wait_in_words(graph, wait))
        yield text.append(f", {outcome}" if outcome else "", style)
    if rest := graph.waits[SHOWN_WAITS:]:
        yield SafeText(f"and waits between {plural(len(rest), 'more pair')}: --format json has all", "dim")


def _table(graph: CallGraph, callers: list[CallNode], width: int) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, header_style="dim")
    name_width = min(WIDEST_NAME, max(NARROWEST_NAME, width - sum(column.width for column in COLUMNS)))
    table.add_column("caller, and what it calls", no_wrap=True, width=name_width, overflow="ellipsis")
    for column in COLUMNS:
        table.add_column(column.name, no_wrap=True, justify="right", width=column.width)
    for node in callers:
        table.add_row(SafeText(node_title(graph, node.key), "bold"))
        edges = graph.edges_of[node.key]
        for edge in edges[:SHOWN_EDGES]:
            _add_edge(table, graph, edge, name_width)
        if node.put_bytes:
            blank = [""] * (len(COLUMNS) - 1)
            table.add_row(SafeText("  objects made by ray.put", "dim"), *blank, size(node.put_bytes))
        if rest := edges[SHOWN_EDGES:]:
            calls = sum(edge.figures.attempts for edge in rest)
            table.add_row(SafeText(f"  and {len(rest):,} more", "dim"), f"{calls:,}")
    return table


def _add_edge(table: Table, graph: CallGraph, edge: CallEdge, width: int) -> None:
    """One row, and one for each method; a single method is in the first row if it fits."""
    methods = edge.methods if edge.target.kind == "actor" else ()
    name = SafeText().append("  → ", "dim").append(edge_title(graph, edge))
    if len(methods) == 1 and name.cell_len > width:
        name = SafeText().append("  → ", "dim").append(node_title(graph, edge.target))
    elif len(methods) == 1:
        methods = ()
    table.add_row(name, *(column.text(edge.figures) for column in COLUMNS), style=_style(edge))
    for one in methods[:SHOWN_METHODS]:
        table.add_row(SafeText(f"      .{one.method}"), *(column.text(one.figures) for column in COLUMNS), style="dim")
    if rest := methods[SHOWN_METHODS:]:
        calls = sum(one.figures.attempts for one in rest)
        table.add_row(SafeText(f"      and {len(rest):,} more"), f"{calls:,}", style="dim")


def _style(edge: CallEdge) -> str:
    return "red" if edge.figures.failed else "yellow" if is_frequent(edge.figures) else ""


def _legend(graph: CallGraph) -> Iterator[str]:
    if any(is_frequent(edge.figures) for edge in graph.edges):
        yield "!: a high rate of calls, as of a loop that polls."
    if any(edge.figures.is_max_open for edge in graph.edges):
        yield "≥: this call still runs."
