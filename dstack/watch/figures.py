"""What a watch knows of the cluster and of itself, in numbers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dstack.diagnosis import Diagnosis, FindingKind, Ratio

NOBODY = Ratio(observed=0, total=0)


@dataclass(frozen=True)
class Figures:
    """Numbers at one moment.

    ``findings`` last now, by kind; ``found`` are all there have been. ``waits`` by kind and ``oldest_wait_s``, for how
    long one has lasted at least, are those of the last full look, or none when nothing stands still any more, and so
    are ``nodes_seen`` and ``workers_seen``. ``answered`` are the workers that the last cheap look was answered by.
    """

    is_up: bool = False
    findings: Mapping[FindingKind, int] = field(default_factory=dict)
    found: Mapping[FindingKind, int] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    oldest_wait_s: float = 0.0
    longest_unmoved_s: float = 0.0
    answered: Ratio = NOBODY
    nodes_seen: Ratio = NOBODY
    workers_seen: Ratio = NOBODY
    looks: int = 0
    full_looks: int = 0


def waits_of(diagnosis: Diagnosis) -> tuple[dict[str, int], float]:
    """How many waits there are of each kind, and for how long the oldest has lasted at least, in s."""
    waiting = [vertex for vertex in diagnosis.vertices.values() if vertex.wait and vertex.is_counted]
    oldest = max((vertex.since.at_least_s or 0.0 for vertex in waiting if vertex.since), default=0.0)
    return dict(Counter(vertex.wait.kind for vertex in waiting if vertex.wait)), oldest


def spent_s() -> float:
    """The CPU time of this process and of its ended children so far, in s."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
