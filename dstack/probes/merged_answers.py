"""Merges the answers of nodes to the requests of one sample, each as it arrives, while others are awaited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from dstack.model import Worker
from dstack.observed import Process
from dstack.observed_node import CoreWorkerReply, Failure
from dstack.probes.node_access.node_readers import Reading
from dstack.probes.record import Record


class MergedAnswers:
    """What the nodes have answered about these workers; frames, stacks, hosts and installations go to the record.

    ``replies`` and ``processes`` are by worker id. ``asked`` are the nodes that have asked their core workers.
    ``own_of`` returns those of some workers with their answers that run for dstack: nothing of their processes is kept.
    """

    def __init__(
        self,
        record: Record,
        workers: Iterable[Worker],
        sample: int,
        own_of: Callable[[Mapping[str, CoreWorkerReply]], Collection[str]],
    ) -> None:
        self.replies: dict[str, CoreWorkerReply] = {}
        self.processes: dict[str, Process] = {}
        self.asked: set[str] = set()
        self._failures: list[Failure] = []
        self._node_of = {worker.worker_id: worker.node_id for worker in workers}
        self._record = record
        self._sample = sample
        self._own_of = own_of

    def add(self, reading: Reading) -> None:
        """Adds the answer of a probe. Raises ``MalformedAnswer``; then no worker of these nodes has an answer."""
        answer = reading.answer
        replies = {id: one for id, one in answer.core_workers.items() if self._node_of.get(id) in reading.nodes}
        kept = self._node_of.keys() - self._own_of(replies)
        processes, failures = self._record.assembly.add(
            reading.nodes, answer, self._sample, kept, reading.clock_ahead_s
        )
        self._record.add_setups(answer)
        self.replies.update(replies)
        self.processes.update(processes)
        self._failures += (one for one in failures if self._node_of.get(one.worker_id or "") in reading.nodes)
        if answer.cannot_ask is None:
            self.asked.update(reading.nodes)

    def failures_of(self, worker_ids: Collection[str]) -> list[Failure]:
        """What failed with these workers."""
        of_these = (one for one in self._failures if one.worker_id in worker_ids)
        return [replace(one, node_id=self._node_of[one.worker_id or ""]) for one in of_these]
