"""Evidence: what both samples and the readings of a snapshot prove together, as a value beside the snapshot.

No observation is changed. Three indexes answer with the samples and with what is known beside each of them:

- ``first``: the first sample. A search that only the second sample made says what can reach the object of a wait.
- ``second``: the second sample, without processes of which it shows less than the first.
- ``latest``: the second sample, and the first for what the second lacks: workers that were not read again, answers that
  did not come, calls that could not be read of executions that did not move. Values that arrived in between are known.

In all three, a loop that only polls is in its poll, also where a sample shows it between two polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from dstack.analysis.evidence.polling_loops import find_polling_loops
from dstack.analysis.evidence.progress import JobProgress
from dstack.analysis.evidence.rest import Rest
from dstack.analysis.evidence.sample_changes import SampleChanges, ended_workers
from dstack.analysis.index.process_index import NOTHING_ELSE, ExecutionKey, KnownElsewhere, Polls, execution_key
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import NODES_SETTLE_S
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Call
from dstack.observed.processes import Coroutine, Process, Thread


class Evidence:
    """The evidence in a snapshot, which has a sample; each part is computed once, when it is needed."""

    def __init__(
        self, snapshot: Snapshot, first: SampleIndex | None = None, nodes_settle_s: float = NODES_SETTLE_S
    ) -> None:
        """``first`` is an index of the first sample alone, if the caller has one.

        ``nodes_settle_s`` is how long after a change of the cluster's nodes no other node is expected any more.
        """
        self.snapshot = snapshot
        self.nodes_settle_s = nodes_settle_s
        self._first_alone = first or SampleIndex(snapshot, snapshot.samples[0])

    @property
    def has_second_sample(self) -> bool:
        """Whether there is a second sample. Without one, nothing is confirmed, and no change is known."""
        return len(self.snapshot.samples) > 1

    @cached_property
    def watched_s(self) -> float | None:
        """How long all confirmed waits were observed at least; None without a second sample."""
        if not self.has_second_sample:
            return None
        return round(max(0.0, self.snapshot.samples[1].began_s - self.snapshot.samples[0].ended_s), 3)

    @cached_property
    def polls(self) -> Polls:
        """The loops that only poll."""
        return find_polling_loops(self.snapshot, self.progress)

    @cached_property
    def rest(self) -> Rest:
        """What did nothing between the samples."""
        return Rest(self.first, self.latest if self.has_second_sample else None)

    @cached_property
    def progress(self) -> JobProgress:
        """What moved in each job between the samples."""
        return JobProgress(self.snapshot)

    # The samples, with what is known beside each

    @cached_property
    def first(self) -> SampleIndex:
        """The first sample."""
        known = KnownElsewhere(calls=dict(self._calls_with_reach()), polls=self.polls)
        return (
            SampleIndex(self.snapshot, self.snapshot.samples[0], known) if known != NOTHING_ELSE else self._first_alone
        )

    @cached_property
    def second(self) -> SampleIndex:
        """The second sample."""
        known = KnownElsewhere(polls=self.polls, incomplete=self._incomplete)
        return SampleIndex(self.snapshot, self.snapshot.samples[1], known)

    @cached_property
    def latest(self) -> SampleIndex:
        """The second sample, and the first for what the second lacks."""
        first, second = self.snapshot.samples[:2]
        read_again = {worker_id for worker_id, process in self.second.processes.items() if process.threads}
        kept = {key: call for key, call in self.first.known.calls.items() if key.worker_id not in read_again}
        known = KnownElsewhere(
            calls=kept | dict(self.changes.calls_of_first()),
            polls=self.polls,
            values=self.changes.given,
            other=first,
            ended=ended_workers(self.snapshot),
            incomplete=self._incomplete,
        )
        return SampleIndex(self.snapshot, second, known)

    @cached_property
    def changes(self) -> SampleChanges:
        """The differences of the two samples."""
        return SampleChanges(self.first, self.second)

    @cached_property
    def _incomplete(self) -> frozenset[str]:
        """The workers whose processes the second sample shows less completely than the first."""
        later = self.snapshot.samples[1].workers
        return frozenset(
            worker.worker_id
            for worker in later
            if _shows_less(worker.process, self._first_alone.process(worker.worker_id))
        )

    def _calls_with_reach(self) -> Iterator[tuple[ExecutionKey, Call]]:
        """The calls of the first sample for which the second found other code that can reach their objects."""
        for worker in self.snapshot.samples[1].workers if self.has_second_sample else ():
            before = self._first_alone.process(worker.worker_id)
            if worker.process is None or before is None or before.started_at != worker.process.started_at:
                continue
            calls = {execution_key(worker.worker_id, one): one.call for one in _executions(before) if one.call}
            for later in _executions(worker.process) if calls else ():
                key = execution_key(worker.worker_id, later)
                call = calls.get(key)
                if call and later.call and call != later.call and call.is_same_as(later.call):
                    yield key, later.call


def _executions(process: Process) -> Iterator[Thread | Coroutine]:
    """The threads and coroutines of a process and of those below it."""
    return (execution for one in process.family for execution in one.executions())


def _shows_less(process: Process | None, before: Process | None) -> bool:
    if process is None or before is None or process.started_at != before.started_at:
        return False
    pairs = (
        (before.threads, process.threads),
        (before.tasks_read, process.tasks_read),
        (before.coroutines_read, process.coroutines_read),
    )
    return any(had and not has for had, has in pairs)
