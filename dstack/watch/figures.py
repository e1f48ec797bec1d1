"""The numbers that a watch publishes about the cluster and about itself."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from dstack.model.diagnosis import Diagnosis, FindingKind, Ratio

NONE_OF_NONE = Ratio(observed=0, total=0)


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers at one moment.

    ``findings`` are the lasting ones, by kind; ``found`` are all since the start. ``waits`` by kind, ``oldest_wait_s``
    (the age of the oldest of them, at least), ``nodes_seen`` and ``workers_seen`` are those of the last snapshot;
    ``waits`` is empty while everything makes progress. ``answered`` counts the workers that answered the last poll.
    """

    is_up: bool = False
    findings: Mapping[FindingKind, int] = field(default_factory=dict)
    found: Mapping[FindingKind, int] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    oldest_wait_s: float = 0.0
    longest_unmoved_s: float = 0.0
    answered: Ratio = NONE_OF_NONE
    nodes_seen: Ratio = NONE_OF_NONE
    workers_seen: Ratio = NONE_OF_NONE
    polls: int = 0
    snapshots: int = 0


def waits_of(diagnosis: Diagnosis) -> tuple[dict[str, int], float]:
    """The number of waits of each kind, and the age of the oldest one, at least, in s."""
    waiting = [vertex for vertex in diagnosis.vertices.values() if vertex.wait and vertex.is_counted]
    oldest = max((vertex.since.at_least_s or 0.0 for vertex in waiting if vertex.since), default=0.0)
    return dict(Counter(vertex.wait.kind_name for vertex in waiting if vertex.wait)), oldest


def spent_s() -> float:
    """The CPU time of this process and of its children so far, in s, also of those that still run."""
    own = psutil.Process()
    spent = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
    return spent
