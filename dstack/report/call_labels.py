"""The labels of a drawn call graph: those of its calls and waits, line by line."""

from __future__ import annotations

from dstack.analysis.history.call_nodes import NodeWait
from dstack.analysis.views.call_graph import CallEdge
from dstack.report.call_columns import longest, rate, wait_kinds, wait_outcome
from dstack.words import plural, short_duration, size

SHOWN_METHODS = 3
"""The most frequent methods that the label of an edge names."""


def edge_lines(edge: CallEdge) -> list[str]:
    """How many calls, which methods, in which states, how long, and the size of what they have made."""
    figures = edge.figures
    frequency = f", {rate(figures).rstrip('!')}/s" if rate(figures) else ""
    states = {"failed": figures.failed, "running": figures.running, "pending": figures.pending}
    mean = f"mean {short_duration(figures.mean_s)}" if figures.mean_s is not None else ""
    maximum = f"max {longest(figures)}" if figures.max_s is not None else ""
    lines = [
        f"{plural(figures.attempts, 'call')}{frequency}",
        methods_in_words(edge),
        ", ".join(f"{count:,} {state}" for state, count in states.items() if count),
        ", ".join(part for part in (mean, maximum) if part),
        f"{size(figures.live_bytes)} alive" if figures.live_bytes else "",
    ]
    return [line for line in lines if line]


def methods_in_words(edge: CallEdge) -> str:
    """``size, __init__ and 2 more``; empty for a function, whose node has the name."""
    if edge.target.kind != "actor":
        return ""
    shown = [one.method for one in edge.methods[:SHOWN_METHODS]]
    rest = len(edge.methods) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def wait_lines(wait: NodeWait) -> list[str]:
    """In which calls so many wait, and what becomes of it."""
    return [line for line in (f"waits: {wait_kinds(wait)}", wait_outcome(wait)) if line]
