"""Whether a host's clock agrees with ours, as far as the time that a question takes lets one see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dstack.model import Node


def ahead_s(theirs: Sequence[float], asked_at: float, answered_at: float) -> float:
    """By how many seconds their clock is ahead at least, negative where it is behind; 0 where it may be right.

    ``theirs`` are the times at which they began and ended what we asked for, ours those of question and answer.
    """
    began_at, ended_at = theirs
    least, most = ended_at - answered_at, began_at - asked_at
    return round(least if least > 0 else min(most, 0.0), 3)


def clock_notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """What is to be known where clocks disagree."""
    return tuple(
        f"The clock of node {node.ip} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the clock of this"
        " host. The ages of waits count only the time that dstack observed."
        for node in nodes
        if (ahead := node.clock_ahead_s or 0.0) and node.has_another_time
    )
