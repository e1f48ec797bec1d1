"""The counts of a soak, its summary, and what makes it fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from benchmarks.soak.alarms import Alarm
from benchmarks.soak.checks import Check
from benchmarks.soak.drivers import Drivers
from benchmarks.soak.faults import Faults
from benchmarks.soak.resources import UNITS, Resources
from dstack.collecting.collector import LATE_S

Document = dict[str, Any]
"""The JSON of ``dstack check``."""
SHOWN_ERRORS = 5


@dataclass
class Tally:
    """What was read in the session or by the checks."""

    verdicts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, document: Document, took_s: float) -> None:
        incomplete = " (incomplete)" if document["incomplete"] else ""
        self.verdicts[document["verdict"] + incomplete] += 1
        self.findings.update(finding["kind"] for finding in document["findings"])
        self.counts["read"] += 1
        self.seconds.append(took_s)

    def add_error(self, error: str, *, is_explained: bool) -> None:
        self.counts["explained" if is_explained else "unexplained"] += 1
        if not is_explained:
            self.errors[error] += 1

    def lines(self, what: str) -> Iterator[str]:
        most = max(self.seconds, default=0.0)
        p95 = quantiles(self.seconds, n=20)[-1] if len(self.seconds) > 1 else most
        yield (
            f"{what}: {self.counts['read']}, median {median(self.seconds or [0.0]):.2f} s, "
            f"p95 {p95:.2f} s, longest {most:.2f} s"
        )
        yield f"  verdicts: {_listed(self.verdicts)}"
        yield f"  findings: {_listed(self.findings)}"
        yield (
            f"  errors: {self.counts['explained']} while the GCS was away or the host was lost, "
            f"{self.counts['unexplained']} others"
        )
        yield from (f"    {count} x {error[:300]}" for error, count in self.errors.most_common(SHOWN_ERRORS))


@dataclass
class Outcome:
    """All that a soak has found."""

    session: Tally = field(default_factory=Tally)
    checks: Tally = field(default_factory=Tally)
    alarms: list[Alarm] = field(default_factory=list)
    late: list[Check] = field(default_factory=list)
    longest_beyond_s: float = float("-inf")
    left: list[str] = field(default_factory=list)
    quit_s: float | None = None
    broken: list[str] = field(default_factory=list)
    """Failures of the soak itself, such as a session that ended."""

    def add_check(self, check: Check) -> None:
        """Note whether it was late."""
        self.longest_beyond_s = max(self.longest_beyond_s, check.took_s - check.timeout_s)
        if check.is_late:
            self.late.append(check)

    def failures(self, resources: Resources, gcs_restarts: int) -> list[str]:
        """Why the soak has failed."""
        false = sum(alarm.is_false for alarm in self.alarms)
        growing = [line for role in resources.points for line in resources.growing(role, gcs_restarts)]
        unexplained = self.session.counts["unexplained"] + self.checks.counts["unexplained"]
        checks = {
            f"{false} false alarms": false,
            f"{len(self.late)} late checks": self.late,
            f"{unexplained} errors that no fault explains": unexplained,
            f"{len(self.left)} leftovers": self.left,
            f"growing: {'; '.join(growing)}": growing,
            "; ".join(self.broken): self.broken,
            "no snapshot was read": not self.session.counts["read"],
        }
        return [text for text, is_failed in checks.items() if is_failed]

    def lines(self, drivers: Drivers, faults: Faults, resources: Resources) -> Iterator[str]:
        """The summary."""
        killed = faults.counts
        yield (
            f"killed: {killed['worker']} workers, {killed['probe']} probes of dstack, {killed['host']} hosts, "
            f"{killed['power']} hosts cut off first, {killed['gcs']} times the GCS; "
            f"{killed['joined']} hosts joined, {killed['not joined']} failed to"
        )
        counts = drivers.counts
        yield (
            f"workloads: {counts['drivers']} drivers, {counts['rounds']} rounds or more, {counts['failures']} rounds "
            f"failed by faults, {counts['died']} drivers ended by themselves, {counts['stopped']} stopped"
        )
        yield from (f"  {line}" for line in drivers.stopped)
        yield from self.session.lines("snapshots in one session")
        yield from self.checks.lines("checks")
        yield (
            f"  late: {len(self.late)}; the latest ended {self.longest_beyond_s:+.1f} s after its timeout "
            f"(allowed: {LATE_S:+g} s)"
        )
        yield from (
            f"    host {check.host}, timeout {check.timeout_s:g} s: {check.took_s:.1f} s {check.error[-200:]}"
            for check in self.late
        )
        yield from self._alarm_lines()
        yield from _resource_lines(resources)
        yield f"the session ended {self.quit_s:.2f} s after SIGTERM" if self.quit_s else "the session did not end"
        yield f"left behind: {len(self.left)}" + "".join(f"\n  {one}" for one in self.left)

    def _alarm_lines(self) -> Iterator[str]:
        yield f"false alarms: {sum(alarm.is_false for alarm in self.alarms)}; true alarms: " + str(
            sum(not alarm.is_false for alarm in self.alarms)
        )
        for alarm in self.alarms:
            sure = "confirmed" if alarm.confirmed else "suspected"
            seen = f"{sure}, {alarm.times} times, by {alarm.source}"
            yield f"  {alarm.verdict}: {alarm.kind}, {seen}: {alarm.summary[:200]}"
            yield f"    because {alarm.reason}; see {', '.join(alarm.evidence) or 'nothing saved'}"


def _resource_lines(resources: Resources) -> Iterator[str]:
    for role in sorted(resources.points):
        pids = len(resources.pids[role])
        judged = "judged" if resources.is_judged(role) else "not judged: too short, or a new process each time"
        quarters = ", ".join(
            f"{first:.0f} -> {last:.0f} {unit}"
            for what, unit in UNITS.items()
            for first, last in [resources.quarters(role, what)]
        )
        yield f"{role} process ({pids} so far, {judged}): first and last quarter {quarters}"
        yield f"  MiB over time: {resources.curve(role)}"


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "none"
