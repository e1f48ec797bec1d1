"""The CPU use of processes and of the host, between the readings of a snapshot, from counters of the kernel.

Nothing waits here: the first sample spans its own duration, later samples all the time since the first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dstack.probes.node.procfs import proc

MIN_OVER_S = 0.01
"""Over a shorter time, one scheduling slice decides the figure."""
MAX_PERCENT = 1e6
MIN_TICKS = 50
"""The host's counters have whole ticks: with fewer of them, of all CPUs, a figure is off by more than 2 %."""


@dataclass(frozen=True)
class CpuUse:
    """A share of one CPU in percent, and the seconds over which it was measured."""

    percent: float
    over_s: float


class CpuMeter:
    """Keeps the first reading of each process and of the host, and compares it with later ones."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[proc.Birth, float, float]] = {}
        self._host: tuple[int, int] | None = None

    def begin(self) -> None:
        """Read the host's counters for the first time."""
        self._host = self._host or proc.cpu_ticks()

    def note(self, pid: int, birth: proc.Birth) -> None:
        """Read the counter of a process for the first time."""
        known = self._first.get(pid)
        if known is None or known[0] != birth:
            cpu_s = proc.cpu_clock(pid)
            if cpu_s is not None:
                self._first[pid] = birth, time.monotonic(), cpu_s

    def use(self, pid: int, birth: proc.Birth) -> CpuUse | None:
        """The use of a process since it was noted; None if it has ended, or was noted too short a time ago."""
        first, now_s, cpu_s = self._first.get(pid), time.monotonic(), proc.cpu_clock(pid)
        if first is None or first[0] != birth or cpu_s is None:
            return None
        over_s = now_s - first[1]
        if over_s < MIN_OVER_S:
            return None
        percent = 100 * max(0.0, cpu_s - first[2]) / over_s
        return CpuUse(round(min(percent, MAX_PERCENT), 1), round(over_s, 3))

    def host_percent(self) -> float | None:
        """The share of all CPUs of the host that was in use since the beginning; None over too short a time."""
        ticks = proc.cpu_ticks()
        if self._host is None or ticks is None or ticks[1] - self._host[1] < MIN_TICKS:
            return None
        busy = (ticks[0] - self._host[0]) / (ticks[1] - self._host[1])
        return round(100 * min(1.0, max(0.0, busy)), 1)
