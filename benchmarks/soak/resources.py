"""The memory, descriptors and threads of a long session over time, and whether they are flat."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

import psutil

from tests.processes import command_line

EVERY_S = 5.0
ROLES = {
    "benchmarks.soak.session": "front end",
    "dstack.probes.node_access": "driver",
    "dstack.collecting.capture": "session",
}
"""What a process of the session is, by a part of its command line."""
SHOWN_POINTS = 12
JUDGED_FROM_S = 1200.0
"""A shorter soak shows how the processes warm up; it is not judged."""
LONG_LIVED_S = 120.0
WARM_UP = 0.1
"""The first part of a soak is left out."""
GROWTH = 0.15
"""How much larger the last quarter may be than the first, or by as much as this: MiB, descriptors, threads."""
SLACK = {"rss": 20.0, "fds": 8.0, "threads": 6.0}
DESCRIPTORS_PER_GCS_RESTART = 1.0
"""A Ray driver keeps about one closed socket for each restart of the GCS, any driver, not only dstack's (Ray 2.60)."""
UNITS = {"rss": "MiB", "fds": "descriptors", "threads": "threads"}


@dataclass(frozen=True)
class Point:
    """The processes of one role at one time."""

    at: float
    rss: float
    fds: float
    threads: float


@dataclass
class Resources:
    """Points by role; ``pids`` are the processes that had the role."""

    points: dict[str, list[Point]] = field(default_factory=lambda: defaultdict(list))
    pids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _due: float = 0.0

    def step(self, root: int) -> None:
        """Note the processes below ``root``, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_S
        try:
            processes = psutil.Process(root).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        for process in processes:
            if role := _role(process):
                self._add(role, process, now)

    def _add(self, role: str, process: psutil.Process, now: float) -> None:
        try:
            with process.oneshot():
                point = Point(
                    now, process.memory_info().rss / 2**20, float(process.num_fds()), float(process.num_threads())
                )
        except psutil.Error:
            return
        self.points[role].append(point)
        self.pids[role].add(process.pid)

    def curve(self, role: str) -> str:
        """Median memory of the parts of the soak, in MiB."""
        points = self.points[role]
        began, span = points[0].at, max(1.0, points[-1].at - points[0].at)
        parts: dict[int, list[float]] = defaultdict(list)
        for point in points:
            parts[min(SHOWN_POINTS - 1, int((point.at - began) / span * SHOWN_POINTS))].append(point.rss)
        return " ".join(f"{median(parts[part]):.0f}" for part in sorted(parts))

    def quarters(self, role: str, what: str) -> tuple[float, float]:
        """The medians of the first and of the last quarter, after warming up."""
        points = self.points[role]
        values = [float(getattr(point, what)) for point in points[int(len(points) * WARM_UP) :]]
        part = max(1, len(values) // 4)
        return median(values[:part]), median(values[-part:])

    def is_judged(self, role: str) -> bool:
        """Whether the soak was long enough, and its processes of this role lived long enough, to show a leak."""
        points = self.points[role]
        span = points[-1].at - points[0].at
        return span > JUDGED_FROM_S and span / len(self.pids[role]) > LONG_LIVED_S

    def growing(self, role: str, gcs_restarts: int) -> list[str]:
        """What has grown too much, of those that are judged."""
        found: list[str] = []
        if not self.is_judged(role):
            return found
        for what, slack in SLACK.items():
            first, last = self.quarters(role, what)
            kept = gcs_restarts * DESCRIPTORS_PER_GCS_RESTART if (role, what) == ("driver", "fds") else 0.0
            if last > first + max(slack, GROWTH * first) + kept:
                found.append(f"{role}: from {first:.0f} to {last:.0f} {UNITS[what]}")
        return found


def _role(process: psutil.Process) -> str | None:
    line = " ".join(command_line(process))
    return next((role for part, role in ROLES.items() if part in line), None)
