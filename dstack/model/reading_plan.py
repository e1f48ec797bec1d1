"""What to read after the first sample: the analysis plans it in one process, and another one reads.

It is a module of its own so that the reading process does not load the analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

from dstack.model.snapshot import Worker

LONGEST_WATCHED_S = 6.5
"""The longest time in which pollers are read again and again."""
OUTLASTING = 1.25
"""How many times the timeout of a wait this must take to show that the wait is one of many."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What to read again: ``workers`` in a second sample, ``pollers`` several times before it.

    Something polls if it waits again after its timeout, so ``pollers`` are those whose timeouts may pass meanwhile.
    ``tasks`` are those of which it matters since when they are in their states. ``timeouts_s`` are those of the
    pollers' waits. ``waits_to_start`` says that something may wait for the installation of its runtime environment, or
    for the start of a worker, ``waits_for_nodes`` that something waits for a node that may join, ``has_waits`` that
    anything waits at all. ``logs_of`` are the workers whose logs may say why, also those that have ended.
    """

    workers: set[str]
    tasks: list[str]
    may_be_stalled: bool = False
    pollers: frozenset[str] = frozenset()
    timeouts_s: tuple[float, ...] = ()
    waits_to_start: bool = False
    waits_for_nodes: bool = False
    has_waits: bool = False
    logs_of: tuple[Worker, ...] = ()

    @property
    def has_second_sample(self) -> bool:
        """Whether a second sample may show more than the first one."""
        return self.has_waits or bool(self.workers)
