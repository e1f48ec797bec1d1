"""The membership of the cluster: whether a node may still join that has what no present node has.

Nodes join late and return. So a request that no present node satisfies is a hang only where nothing speaks for another
node: a driver made the cluster for itself, or no node has joined or left for a while and none that had it was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from dstack.model.diagnosis import NODES_SETTLE_S
from dstack.model.snapshot import Node, Snapshot
from dstack.model.vertex_facts import Reason, reason

RETURNS_WITHIN = 5
"""A lost node may return for this multiple of that time."""

Satisfies: TypeAlias = Callable[[Sequence[Node]], bool]
"""Whether a request would be satisfied if these nodes were there too."""


class Membership:
    """When nodes joined and left, as ages at the start of the snapshot; 0 s if a clock says later.

    ``settle_s`` is how long after a change no other node is expected any more. Nothing is known of snapshots without
    the times at which nodes started. The ages are by dstack's clock: a node states its start by its own clock, and the
    head states the ends.
    """

    def __init__(self, snapshot: Snapshot, settle_s: float = NODES_SETTLE_S) -> None:
        self._snapshot = snapshot
        self._settle_s = settle_s

    @cached_property
    def is_closed(self) -> bool:
        """Whether no other node joins: a driver made the cluster for itself, and none has ever joined."""
        return self._snapshot.is_of_one_driver and len(self._snapshot.nodes) == 1

    @cached_property
    def is_known(self) -> bool:
        """Whether other nodes may join, and it is known when the present ones did."""
        return not self.is_closed and bool(self._joined)

    @property
    def joined_s(self) -> float | None:
        """How long ago the last node joined; None if that is unknown, or no other node joins."""
        return min(self._joined.values()) if self.is_known else None

    def last_change(self) -> Reason | None:
        """What shows that membership has not settled: a young cluster, or the node that joined or left last."""
        if not self.is_known:
            return None
        if (age_s := max(self._joined.values())) < self._settle_s:
            return reason("young cluster", age_s)
        return self._last("node joined", self._joined) or self._last("node left", self._left)

    def _last(self, change: Literal["node joined", "node left"], ages: Mapping[str, float]) -> Reason | None:
        node_id = min(ages, key=lambda node_id: ages[node_id], default="")
        if not ages or ages[node_id] >= self._settle_s:
            return None
        return reason(change, self._nodes[node_id], ages[node_id])

    def lost(self, satisfies: Satisfies) -> tuple[Node, float] | None:
        """A lost node that may return and would satisfy a request, perhaps with other lost ones, and when it ended.

        The time is in Unix seconds, by dstack's clock.
        """
        if not self._lost or not satisfies(self._lost):
            return None
        node = next((node for node in self._lost if satisfies([node])), self._lost[0])
        return node, self._snapshot.taken_at - self._left[node.node_id]

    @cached_property
    def _lost(self) -> list[Node]:
        """The lost nodes that may return, the last one first."""
        ages = {key: age_s for key, age_s in self._left.items() if age_s < RETURNS_WITHIN * self._settle_s}
        return [self._nodes[key] for key in sorted(ages, key=lambda key: ages[key])] if self.is_known else []

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.node_id: node for node in self._snapshot.nodes}

    @cached_property
    def _joined(self) -> dict[str, float]:
        """How long ago each node started."""
        started = ((node, node.started_at) for node in self._snapshot.nodes)
        return {node.node_id: self._age_s(at, node.clock_ahead_s) for node, at in started if at is not None}

    @cached_property
    def _left(self) -> dict[str, float]:
        """How long ago each dead node ended."""
        ahead_s = next((node.clock_ahead_s for node in self._snapshot.nodes if node.is_head and node.alive), None)
        ended = ((node, node.ended_at) for node in self._snapshot.nodes if not node.alive)
        return {node.node_id: self._age_s(at, ahead_s) for node, at in ended if at is not None}

    def _age_s(self, at: float, ahead_s: float | None) -> float:
        return max(0.0, self._snapshot.taken_at - (at - (ahead_s or 0.0)))
