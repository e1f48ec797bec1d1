"""Which alarms are false.

All workloads make progress, and what was killed comes back or raises an error, so each wait ends. A finding `deadlock`,
`orphaned` or `infeasible`, confirmed or only suspected, says that its waits never end. So it is false if they have
ended. That is judged :data:`JUDGED_S` later, by what dstack does not know:

- A workload has finished a round, or failed, after the alarm. It had waited for all that it began, so the alarm was
  false, unless the same tasks are still in a finding :data:`PERSISTS_S` later: a round that failed may leave them.
- A workload that makes no progress for all of that time has really stopped. Then the alarm is called true.
- A rank of a process group died within :data:`RANK_LOST_S` before. The others wait for it until the group's timeout,
  and then raise an error: that is the hang that the finding describes, so it is true.
- A job whose driver was ended makes no progress. An alarm about it is false unless its tasks persist.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak import ALARMS
from benchmarks.soak.drivers import Drivers
from benchmarks.soak.faults import Faults

JUDGED_S = 150.0
PERSISTS_S = 60.0
RANK_LOST_S = 150.0
"""As long as Ray and then the process group of the workload need to notice a host that is cut off."""

Finding = Mapping[str, Any]
"""A finding in the JSON of ``dstack check``."""


@dataclass
class Alarm:
    """A finding that was seen in one or more snapshots or checks, first and last by ``time.monotonic()``."""

    kind: str
    summary: str
    jobs: list[str]
    tasks: frozenset[str]
    of_group: bool
    source: str
    confirmed: bool
    first: float
    last: float
    times: int = 1
    evidence: list[str] = field(default_factory=list)
    verdict: str | None = None
    reason: str = ""

    @property
    def is_false(self) -> bool:
        return self.verdict == "false"


class Alarms:
    """Collects alarms, and judges each when enough time has passed."""

    def __init__(self, drivers: Drivers, faults: Faults) -> None:
        self._drivers = drivers
        self._faults = faults
        self.all: list[Alarm] = []

    def add(self, findings: list[Finding], began: float, source: str, evidence: str | None) -> list[Alarm]:
        """Note the alarms of one document; returns those that were not known."""
        new = []
        for finding in findings:
            if finding["kind"] not in ALARMS:
                continue
            alarm = _alarm(finding, began, source)
            known = next((one for one in self.all if one.verdict is None and _is_same(one, alarm)), None)
            if known is None:
                self.all.append(alarm)
                new.append(alarm)
            else:
                known.last, known.times = max(known.last, began), known.times + 1
            if evidence and len((known or alarm).evidence) < 3:
                (known or alarm).evidence.append(evidence)
        return new

    @property
    def open_jobs(self) -> set[str]:
        """The jobs of alarms that are not judged yet."""
        return {job for alarm in self.all if alarm.verdict is None for job in alarm.jobs}

    def judge(self, *, at_end: bool = False) -> list[Alarm]:
        """Judge the alarms that are old enough; at the end all."""
        now = time.monotonic()
        due = [one for one in self.all if one.verdict is None and (at_end or now - one.first > JUDGED_S)]
        for alarm in due:
            alarm.verdict, alarm.reason = self._verdict(alarm, now)
        return due

    def _verdict(self, alarm: Alarm, now: float) -> tuple[str, str]:
        if alarm.of_group and (faults := self._faults.before(alarm.first, RANK_LOST_S)):
            return "true", f"a rank was lost: {faults[-1].what}"
        if alarm.tasks and alarm.last - alarm.first > PERSISTS_S:
            return "true", f"the same tasks still waited {alarm.last - alarm.first:.0f} s later"
        progress = [self._drivers.progress.get(job, 0.0) for job in alarm.jobs]
        if any(at > alarm.first for at in progress):
            return "false", "the workload went on"
        if any(job not in self._drivers.ended for job in alarm.jobs):
            return "true", f"the workload made no progress for {now - max(progress):.0f} s"
        return "false", "the driver had ended, and the waits have ended, too"


def _alarm(finding: Finding, began: float, source: str) -> Alarm:
    members = finding["members"]
    return Alarm(
        kind=finding["kind"],
        summary=finding["summary"],
        jobs=finding["jobs"],
        tasks=frozenset(member["task_id"] for member in members if member.get("task_id")),
        of_group=any(wait.get("process_group") for member in members for wait in member["waits_for"]),
        source=source,
        confirmed=finding["confirmed"],
        first=began,
        last=began,
    )


def _is_same(known: Alarm, other: Alarm) -> bool:
    if known.kind != other.kind:
        return False
    if known.tasks or other.tasks:
        return bool(known.tasks & other.tasks)
    return (known.summary, known.jobs) == (other.summary, other.jobs)
