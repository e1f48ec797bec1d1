"""Follows one job until it has ended or is stuck, for ``dstack check --wait``.

As in a watch, polls are cheap, and only something without progress leads to a snapshot. A finding that one snapshot
does not prove counts when a later snapshot shows that nothing in it has moved.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from dstack.analysis.naming.names import jobs_called
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import Collector
from dstack.errors import ClusterError, UsageError
from dstack.model.diagnosis import FAILING, NODES_SETTLE_S, FailOn
from dstack.model.snapshot import ClusterPoll, Job
from dstack.watch.alerts import FindingTracker
from dstack.watch.figures import spent_s
from dstack.watch.trigger import POLL_S, ProgressTracker, SnapshotTrigger

SHARE = 0.05
"""The part of one core that snapshots may use on average."""
LOST_S = 120.0
"""A cluster may be unreachable for this long, as while its GCS restarts."""
APPEARS_S = 300.0
"""A job may begin this long after the command: a submitted job first sets up its environment."""


class JobFollower:
    """Follows the job called ``job``; times in seconds. ``say`` is called with what is going on."""

    def __init__(
        self,
        collector: Collector,
        job: str,
        fail_on: FailOn,
        *,
        every_s: float,
        stuck_after_s: float,
        nodes_settle_s: float = NODES_SETTLE_S,
        say: Callable[[str], None],
    ) -> None:
        self._collector = collector
        self._job = job
        self._every_s = every_s
        self._say = say
        self._progress = ProgressTracker()
        self._trigger = SnapshotTrigger(stuck_after_s, SHARE)
        self._stuck_after_s = stuck_after_s
        self._nodes_settle_s = nodes_settle_s
        kinds = FAILING[fail_on]
        self._findings: defaultdict[str, FindingTracker] = defaultdict(lambda: FindingTracker(stuck_after_s, kinds))
        """By the id of a job: a submitted job may have several drivers."""

    def run(self) -> AnalysedSnapshot | None:
        """The first snapshot in which the job is stuck; None when it has ended.

        Raises :class:`UsageError` if there is no such job, and :class:`ClusterError` if the cluster is gone.
        """
        began = answered_at = time.monotonic()
        while True:
            try:
                poll = self._collector.poll(POLL_S, with_jobs=True)
            except ClusterError as error:
                if time.monotonic() - answered_at > LOST_S:
                    raise
                self._say(f"no answer, retrying: {error.message}")
            else:
                answered_at = time.monotonic()
                jobs = self._jobs(poll, began)
                if jobs and all(job.is_dead for job in jobs):
                    return None
                if jobs and (stuck := self._inspected(poll, jobs)):
                    return stuck
            time.sleep(self._every_s)

    def _jobs(self, poll: ClusterPoll, began: float) -> list[Job]:
        """The jobs that are followed; none if they have not appeared yet."""
        try:
            return jobs_called(poll.jobs, self._job)
        except UsageError:
            if time.monotonic() - began > APPEARS_S:
                raise
            self._say(f"waiting for a job called {self._job}")
            return []

    def _inspected(self, poll: ClusterPoll, jobs: list[Job]) -> AnalysedSnapshot | None:
        """A new snapshot of a stuck job, if one is due and a job is stuck in it."""
        now = time.monotonic()
        self._progress.update(poll, now)
        self._say(
            f"{self._job} runs; the longest time without progress is {self._progress.longest_unchanged_s(now):.0f} s"
        )
        unchanged = self._progress.unchanged_for(self._stuck_after_s, now)
        if not self._trigger.reason(unchanged, now):
            return None
        before = spent_s()
        try:
            snapshot = self._collector.take()
        except ClusterError:
            self._trigger.note_failure(time.monotonic())
            return None
        now = time.monotonic()
        for job in jobs:
            analysed = AnalysedSnapshot.of(snapshot, job=job.job_id, nodes_settle_s=self._nodes_settle_s)
            changes = self._findings[job.job_id].update(analysed, now)
            if changes.new:
                return analysed
        has_unproven = any(tracker.unproven for tracker in self._findings.values())
        self._trigger.note_snapshot(unchanged, time.monotonic(), spent_s() - before, has_unproven=has_unproven)
        return None
