"""What the autoscaler and the platform report, as facts about a wait for a node that may join."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.graph.membership import Satisfies
from dstack.analysis.graph.resource_holders import Amounts, plain
from dstack.model.snapshot import PlacementGroup, Snapshot
from dstack.model.vertex_facts import Reason, reason

MAX_REPORTS = 3
"""At most so many reports are said of one wait."""
LOOP_S, MIN_LOSSES = 600.0, 2
"""Nodes come and go in a loop if so many that had the same left within this time."""
NOT_STARTED = frozenset(
    (
        "BackOff",
        "Failed",
        "FailedCreate",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedScheduling",
        "NotTriggerScaleUp",
    )
)
"""Reasons of Kubernetes for which a pod, and so a node, has not started."""
PLATFORM_S = 1_800.0
"""A warning of the platform that is older is about the past: Kubernetes repeats it, ever more seldom."""
STALE_S = 60.0
"""A report that is older is stale: the first version of the autoscaler writes one in 5 s."""


class Autoscaling:
    """The report of a snapshot's autoscaler; of none or an unknown one it says nothing.

    Ages are by dstack's clock.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._state = snapshot.autoscaler_state
        ahead_s = next((node.clock_ahead_s for node in snapshot.nodes if node.is_head and node.alive), None)
        self._now = snapshot.taken_at + (ahead_s or 0.0)

    def refusal(self, request: Amounts, group: PlacementGroup | None = None) -> Reason | None:
        """That it can add no node for a request, or for the bundles of a placement group, if it reports so."""
        state = self._state
        if state is None:
            return None
        known = plain(request) in state.refused if group is None else group.placement_group_id in state.refused_groups
        return reason("refused") if known else None

    def came_and_went(self, satisfies: Satisfies) -> Reason | None:
        """The nodes that had what is missing and left a short time ago, if they are several."""
        ended = [(node.ended_at, node) for node in self._snapshot.nodes if not node.alive and node.ended_at]
        lost = [(at, node) for at, node in ended if self._now - at < LOOP_S and satisfies([node])]
        if len(lost) < MIN_LOSSES:
            return None
        at, last = max(lost, key=lambda one: one[0])
        lives = [at - node.started_at for at, node in lost if node.started_at]
        longest_s = max(lives) if len(lives) == len(lost) and self._snapshot.has_one_time else None
        return reason("came and went", len(lost), longest_s, max(0.0, self._now - at), last.death_cause or "")

    def platform_events(self) -> Iterator[Reason]:
        """The recent warnings of the platform about what has not started, the newest first."""
        pending = (event for event in self._snapshot.platform_events if event.reason in NOT_STARTED)
        for event in sorted(pending, key=lambda one: -(one.at or 0.0)):
            age_s = self._age_s(event.at)
            if age_s is None or age_s < PLATFORM_S:
                text = ": ".join(filter(None, (event.reason, event.message.rstrip("."))))
                yield reason("platform event", event.kind, event.name, text, event.count, age_s)

    def reports(self) -> Iterator[Reason]:
        """What failed and what it does, the worst first."""
        yield from self.platform_events()
        state = self._state
        if state is None:
            return
        if state.error:
            yield reason("autoscaler failed", state.error)
        if state.reported_at and (age_s := self._now - state.reported_at) > STALE_S:
            yield reason("stale report", age_s)
        for failed in sorted(state.failed, key=lambda one: -(one.last_at or 0.0)):
            yield reason("failed launches", failed.node_type, failed.times, self._age_s(failed.last_at), failed.reason)
        for pending in state.pending:
            status = pending.status
            yield reason("pending nodes", pending.count, pending.node_type, status, self._age_s(pending.since))

    def _age_s(self, at: float | None) -> float | None:
        """How long ago that was; None if it is unknown."""
        return max(0.0, self._now - at) if at is not None else None
