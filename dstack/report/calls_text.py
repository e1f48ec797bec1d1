"""A call graph as text: its figures as aligned columns, names, waits and labels in words, and all of it as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dstack.analysis.history.call_nodes import NodeKey, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallFigures, CallGraph, CallNode
from dstack.report.profile_text import passed
from dstack.report.rich_text import SafeText, plain_text
from dstack.words import duration, listed, plural, short_duration, size, times, word

RATED_CALLS = 10
"""Fewer calls have no rate: they are a burst, or far apart."""
MARKS = {
    "deadlocked": ("✖", "bold red"),
    "blocked": ("■", "yellow"),
    "inferred": ("?", "cyan"),
    "waits": ("…", "cyan"),
}
"""The words beside these marks say the same."""
OWN = {
    "actor slot": "for a slot",
    "arguments": "for results",
    "event loop": "for the event loop",
    "resources": "for resources",
}
"""How a call waits for its own actor or function, by the kind of its wait."""
LABEL_METHODS = 3
"""The most frequent methods that the label of an edge names."""
WIDTH = 100
NARROWEST_NAME, WIDEST_NAME = 24, 60
SHOWN_CALLERS = 30
SHOWN_EDGES = 10
SHOWN_METHODS = 4
SHOWN_WAITS = 20
SHOWN_TRAFFIC = 10


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its width in cells, the text of a row, and the value by which rows are sorted."""

    name: str
    width: int
    text: Callable[[CallFigures], str]
    value: Callable[[CallFigures], float]

    def cell(self, figures: CallFigures) -> str:
        """The text of a row, right-justified."""
        return self.text(figures).rjust(self.width)


def rate(figures: CallFigures) -> str:
    """``43``, ``0.5``; marked if it is high; empty for few calls."""
    if figures.per_s is None or figures.attempts < RATED_CALLS:
        return ""
    number = f"{figures.per_s:,.0f}" if figures.per_s >= 9.95 else f"{figures.per_s:.1f}"
    return f"{number}!" if figures.is_frequent else number


def brief(seconds: float) -> str:
    """``5.9 ms``, ``340 ms``, ``5.1 s``, ``12 min``, ``3.2 h``: a duration in at most seven cells."""
    if seconds < 99.5:
        return short_duration(seconds) if seconds < 59.5 else f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"


def longest(figures: CallFigures) -> str:
    """``163 ms``; ``≥ 5.1 s`` if the longest attempt still runs."""
    if figures.max_s is None:
        return ""
    return f"≥ {brief(figures.max_s)}" if figures.is_max_open else brief(figures.max_s)


COLUMNS = (
    Column("calls", 7, lambda one: f"{one.attempts:,}", lambda one: one.attempts),
    Column("/s", 6, rate, lambda one: one.per_s or 0.0),
    Column("pend", 6, lambda one: _count(one.pending), lambda one: one.pending),
    Column("run", 5, lambda one: _count(one.running), lambda one: one.running),
    Column("fail", 5, lambda one: _count(one.failed), lambda one: one.failed),
    Column("mean", 8, lambda one: "" if one.mean_s is None else brief(one.mean_s), lambda one: one.mean_s or 0),
    Column("max", 9, longest, lambda one: one.max_s or 0.0),
    Column("alive", 8, lambda one: size(one.live_bytes) if one.live_bytes else "", lambda one: one.live_bytes),
)
"""The columns, in their order."""


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


# Names


def edge_title(graph: CallGraph, edge: CallEdge) -> str:
    """``Rollout (3 actors)``, or ``Rollout.pause`` if only one method is called."""
    if edge.target.kind == "actor" and len(edge.methods) == 1:
        return f"{graph.node[edge.target].title}.{edge.methods[0].method}{_job(graph, edge.target)}"
    return node_title(graph, edge.target)


def node_title(graph: CallGraph, key: NodeKey) -> str:
    """``Rollout (3 actors)``; with its job if the graph has several."""
    node = graph.node[key]
    actors = f" ({plural(node.instances, 'actor')})" if node.instances > 1 else ""
    return f"{node.title}{actors}{_job(graph, key)}"


def _job(graph: CallGraph, key: NodeKey) -> str:
    return f" of job {key.job_id}" if graph.has_several_jobs and key.kind in ("actor", "function") else ""


# Waits


def wait_mark(wait: NodeWait) -> tuple[str, str]:
    """The mark of a wait, with its colour."""
    certain = "inferred" if wait.is_inferred else "waits"
    return MARKS["deadlocked" if wait.deadlocked else "blocked" if wait.blocked else certain]


def wait_kinds(wait: NodeWait) -> str:
    """The number of waiters in each call, as of ``ray.get``."""
    return listed([f"{count:,} × {kind}" for kind, count in wait.kinds.items()])


def own_wait(graph: CallGraph, wait: NodeWait) -> str:
    """``2 calls wait for a slot of their own actor``: a wait of a node for itself."""
    parts = [_own_calls(wait, kind, count) for kind, count in wait.kinds.items()]
    node = graph.node[wait.source]
    own = "function" if node.key.kind == "function" else "class" if node.instances > 1 else node.key.kind
    return f"{listed(parts)} of {word(wait.count, 'its', 'their')} own {own}"


def _own_calls(wait: NodeWait, kind: str, count: int) -> str:
    waits = "may wait" if wait.is_inferred else word(count, "waits", "wait")
    return f"{plural(count, 'call')} {waits} {OWN.get(kind, f'in {kind} for {listed(wait.own)}')}"


def wait_in_words(graph: CallGraph, wait: NodeWait) -> str:
    """``Trainer waits for Rollout: 1 ray.get``, without its outcome."""
    source = node_title(graph, wait.source)
    if wait.source == wait.target:
        return f"{source}: {own_wait(graph, wait)}"
    return f"{source} {waits_for(wait)} {node_title(graph, wait.target)}: {wait_kinds(wait)}"


def waits_for(wait: NodeWait) -> str:
    """``waits for``, or ``may wait for`` what is only one of several possibilities."""
    return "may wait for" if wait.is_inferred else "waits for"


def wait_outcome(wait: NodeWait) -> str:
    """``deadlock``, ``1 in a deadlock, 1 never proceeds``; empty for waits that may end."""
    if wait.deadlocked == wait.count:
        return "deadlock"
    deadlocked = f"{wait.deadlocked:,} in a deadlock" if wait.deadlocked else ""
    rest = wait.blocked
    blocked = (
        f"{rest:,} never {word(rest, 'proceeds', 'proceed')}"
        if rest and rest < wait.count
        else "never proceeds"
        if rest
        else ""
    )
    return ", ".join(part for part in (deadlocked, blocked) if part)


# The whole graph


def counts_by_state(figures: CallFigures) -> str:
    """``116 finished, 1 failed, 2 running, 2 pending``: the states that calls are in."""
    states = ("finished", "failed", "running", "pending")
    return ", ".join(f"{count:,} {state}" for state in states if (count := getattr(figures, state)))


def summary(graph: CallGraph) -> str:
    """``121 calls within 6.2 s: 116 finished, 1 failed, 2 running, 2 pending``."""
    figures = graph.figures
    counts = counts_by_state(figures)
    span = f" within {duration(graph.ended_at - graph.began_at)}" if graph.ended_at and graph.began_at else ""
    retries = figures.attempts - figures.tasks
    retried = f", of {plural(figures.tasks, 'task')}, retried {times(retries)}" if retries else ""
    return f"{plural(figures.attempts, 'call')}{span}{retried}" + (f": {counts}" if counts else "")


def remarks(graph: CallGraph) -> list[str]:
    """What the graph does not have, and why: one sentence each."""
    found = []
    if graph.ended_at is None:
        found.append("This snapshot has no history: only calls that have not ended are known.")
    if graph.left_out:
        found.append(f"{plural(graph.left_out, 'older call')} of the history {_were(graph.left_out)} not read.")
    if graph.dropped:
        found.append(f"Ray has dropped the events of {plural(graph.dropped, 'call')}.")
    if graph.has_unknown_callers:
        found.append("unknown caller: Ray does not keep the task that made these calls, or a thread has made them.")
    if graph.other_bytes:
        found.append(f"{size(graph.other_bytes)} of live objects belong to tasks that are not in this graph.")
    return found


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def edge_lines(edge: CallEdge) -> list[str]:
    """How many calls, which methods, in which states, how long, and the size of what they have made."""
    figures = edge.figures
    frequency = f", {rate(figures).rstrip('!')}/s" if rate(figures) else ""
    mean = f"mean {short_duration(figures.mean_s)}" if figures.mean_s is not None else ""
    maximum = f"max {longest(figures)}" if figures.max_s is not None else ""
    lines = [
        f"{plural(figures.attempts, 'call')}{frequency}",
        methods_in_words(edge),
        counts_by_state(replace(figures, finished=0)),
        ", ".join(part for part in (mean, maximum) if part),
        f"{size(figures.live_bytes)} alive" if figures.live_bytes else "",
    ]
    return [line for line in lines if line]


def methods_in_words(edge: CallEdge) -> str:
    """``size, __init__ and 2 more``; empty for a function, whose node has the name."""
    if edge.target.kind != "actor":
        return ""
    shown = [one.method for one in edge.methods[:LABEL_METHODS]]
    rest = len(edge.methods) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def wait_lines(wait: NodeWait) -> list[str]:
    """In which calls so many wait, and what becomes of it."""
    waits = "may wait" if wait.is_inferred else "waits"
    return [line for line in (f"{waits}: {wait_kinds(wait)}", wait_outcome(wait)) if line]


def _traffic_lines(graph: CallGraph) -> Iterator[str]:
    """``Data: at least 1.2 GiB in 340 objects from Loader to Trainer``, the heaviest first."""
    for one in graph.traffic[:SHOWN_TRAFFIC]:
        ends = f"from {node_title(graph, one.source)} to {node_title(graph, one.target)}"
        yield f"Data: {passed(one.objects, one.bytes)} {ends}"
    if rest := graph.traffic[SHOWN_TRAFFIC:]:
        yield f"and data between {plural(len(rest), 'more pair')}: --format json has all"


def call_table(graph: CallGraph, width: int = WIDTH) -> str:
    """The graph as plain text, so many columns wide."""
    return plain_text(lambda console: print_call_table(console, graph), width)


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
    if graph.traffic:
        console.print()
    for sentence in _traffic_lines(graph):
        console.print(SafeText(sentence), soft_wrap=True)
    notes = [*legend(graph), *remarks(graph)]
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
    return "red" if edge.figures.failed else "yellow" if edge.figures.is_frequent else ""


def legend(graph: CallGraph) -> Iterator[str]:
    """What the signs beside figures and words mean: one sentence for each that is there."""
    if any(edge.figures.is_frequent for edge in graph.edges):
        yield "!: a high rate of calls, as of a loop that polls."
    if any(edge.figures.is_max_open for edge in graph.edges):
        yield "≥: this call still runs."
    if any(wait.is_inferred for wait in graph.waits):
        yield "?, may wait: for this or for something else; for which is not known."
