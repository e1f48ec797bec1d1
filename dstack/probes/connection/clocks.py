"""Compares a host's clock with ours, to the precision of a request's duration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dstack.model import Node


def ahead_s(theirs: Sequence[float], asked_at: float, answered_at: float) -> float:
    """By how many seconds at least their clock is ahead, negative if it is behind, 0 if it may be right.

    Ours are the times of request and reply; theirs are when they began and ended its work.
    """
    began_at, ended_at = theirs
    least, most = ended_at - answered_at, began_at - asked_at
    return round(least if least > 0 else min(most, 0.0), 3)


def clock_notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Notes on clocks that disagree."""
    return tuple(
        f"The clock of node {node.ip} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the clock of this"
        " host. The ages of waits count only the time that dstack observed."
        for node in nodes
        if (ahead := node.clock_ahead_s or 0.0) and node.has_another_time
    )
