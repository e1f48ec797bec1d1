"""The figures of calls as aligned columns, and the names and waits of a call graph in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dstack.analysis.history.call_figures import Figures
from dstack.analysis.history.call_nodes import NodeKey, NodeWait
from dstack.analysis.views.call_graph import CallEdge, CallGraph, is_frequent
from dstack.words import duration, listed, plural, short_duration, size, times, word

RATED_CALLS = 10
"""Fewer calls have no rate: they are a burst, or far apart."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its width in cells, the text of a row, and the value by which rows are sorted."""

    name: str
    width: int
    text: Callable[[Figures], str]
    value: Callable[[Figures], float]

    def cell(self, figures: Figures) -> str:
        """The text of a row, right-justified."""
        return self.text(figures).rjust(self.width)


def rate(figures: Figures) -> str:
    """``43``, ``0.5``; marked if it is high; empty for few calls."""
    if figures.per_s is None or figures.attempts < RATED_CALLS:
        return ""
    number = f"{figures.per_s:,.0f}" if figures.per_s >= 9.95 else f"{figures.per_s:.1f}"
    return f"{number}!" if is_frequent(figures) else number


def brief(seconds: float) -> str:
    """``5.9 ms``, ``340 ms``, ``5.1 s``, ``12 min``, ``3.2 h``: a duration in at most seven cells."""
    if seconds < 99.5:
        return short_duration(seconds) if seconds < 59.5 else f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.1f} h"


def longest(figures: Figures) -> str:
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

MARKS = {"deadlocked": ("✖", "bold red"), "blocked": ("■", "yellow"), "waits": ("…", "cyan")}
"""The words beside these marks say the same."""


OWN = {"actor slot": "a slot", "event loop": "the event loop"}
"""What a call waits for at its own actor, by the kind of its wait."""


def wait_mark(wait: NodeWait) -> tuple[str, str]:
    """The mark of a wait, with its colour."""
    return MARKS["deadlocked" if wait.deadlocked else "blocked" if wait.blocked else "waits"]


def wait_kinds(wait: NodeWait) -> str:
    """The number of waiters in each call, as of ``ray.get``."""
    return listed([f"{count:,} × {kind}" for kind, count in wait.kinds.items()])


def own_wait(graph: CallGraph, wait: NodeWait) -> str:
    """``2 calls wait for a slot of their own actor``: a wait of a node for itself."""
    parts = [_own_calls(kind, count) for kind, count in wait.kinds.items()]
    node = graph.node[wait.source]
    own = "function" if node.key.kind == "function" else "class" if node.instances > 1 else node.key.kind
    return f"{listed(parts)} of {word(wait.count, 'its', 'their')} own {own}"


def _own_calls(kind: str, count: int) -> str:
    waits = word(count, "waits", "wait")
    if kind in OWN:
        return f"{plural(count, 'call')} {waits} for {OWN[kind]}"
    return f"{plural(count, 'call')} {waits} in {kind} for calls"


def wait_in_words(graph: CallGraph, wait: NodeWait) -> str:
    """``Trainer waits for Rollout: 1 ray.get``, without its outcome."""
    source = node_title(graph, wait.source)
    if wait.source == wait.target:
        return f"{source}: {own_wait(graph, wait)}"
    return f"{source} waits for {node_title(graph, wait.target)}: {wait_kinds(wait)}"


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


def summary(graph: CallGraph) -> str:
    """``121 calls within 6.2 s: 116 finished, 1 failed, 2 running, 2 pending``."""
    figures = graph.figures
    states = {
        "finished": figures.finished,
        "failed": figures.failed,
        "running": figures.running,
        "pending": figures.pending,
    }
    counts = ", ".join(f"{count:,} {state}" for state, count in states.items() if count)
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
