"""Reads a node for one sample: asks its core workers, in a thread, while it reads its processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dstack.observed.node import NodeAnswer
from dstack.probes.node import wire
from dstack.probes.node.core_workers.asking import GRACE_S, CoreWorkers, Replies
from dstack.probes.node.core_workers.channels import CannotAsk
from dstack.probes.node.probe import NodeProbe, Others
from dstack.probes.node.wire import NodeRequest, Questions

TOO_LATE = "its requests to core workers did not end in time"


class NodeReader:
    """Answers requests about this node, and keeps what it has learned and connected for the next one.

    ``stubs`` are those of :class:`CoreWorkers`; ``is_guest`` and ``prepare`` are those of :class:`NodeProbe`.
    """

    def __init__(
        self,
        stubs: Callable[[], Any] | None = None,
        *,
        is_guest: bool = False,
        prepare: Callable[[wire.Target], wire.Target] | None = None,
    ) -> None:
        self.probe = NodeProbe(is_guest=is_guest, prepare=prepare)
        self._core_workers = CoreWorkers(stubs)

    def sample(self, request: wire.NodeRequest) -> NodeAnswer:
        """One sample of this node; without anything to read, only of its core workers."""
        if request["is_first"]:
            self.probe.begin_snapshot()
        deadline = time.monotonic() + request["options"]["deadline_s"]
        asking = AskingThread(self._core_workers, request, deadline)
        answer = asking.finish(self._read(request))
        return replace(answer, clock=(answer.clock[0], time.time()))

    def close(self) -> None:
        """Ends what still records, and closes the connections to core workers."""
        self.probe.close()
        self._core_workers.close()

    def _read(self, request: wire.NodeRequest) -> NodeAnswer:
        options = request["options"]
        others = _others(request) if options.get("starting") else None
        if request["targets"] or options.get("setups_of") or options.get("tcp_ends") or others:
            return self.probe.sample(request["targets"], options, others)
        now = time.time()
        return NodeAnswer(clock=(now, now))


def _others(request: wire.NodeRequest) -> Others:
    """The worker processes of its nodes besides those that the request names."""
    named = {one["worker_id"]: one["pid"] for one in (*request["workers"], *request["targets"])}
    return Others(node_ids=request["nodes"], named=named)


class AskingThread:
    """A thread that asks core workers until ``deadline``, a ``time.monotonic()``."""

    def __init__(self, core_workers: CoreWorkers, request: NodeRequest, deadline: float) -> None:
        self._core_workers = core_workers
        self._request = request
        self._deadline = deadline
        self._replies = Replies()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="dstack-ask", daemon=True)
        if request["workers"]:
            self._thread.start()

    def finish(self, answer: NodeAnswer) -> NodeAnswer:
        """Awaits the replies; returns the answer with them and the failures, or why no core worker can be asked.

        If processes were read meanwhile, workers that had no job are asked for it again: by now, a worker may run for
        another job, even for dstack's own.
        """
        if self._request["workers"]:
            self._thread.join(max(0.0, self._deadline - time.monotonic()) + 2 * GRACE_S)
        if self._thread.is_alive():
            return replace(answer, cannot_ask=TOO_LATE)
        if isinstance(self._error, CannotAsk):
            return replace(answer, cannot_ask=str(self._error))
        if self._error is not None:
            raise self._error
        if self._request["targets"]:
            self._ask_idle_again()
        failures = (*answer.failures, *self._replies.failures)
        return replace(answer, core_workers=self._replies.found, failures=failures)

    def _run(self) -> None:
        try:
            self._replies = self._core_workers.ask(self._request["workers"], self._request["questions"], self._deadline)
        except Exception as error:  # raised where the replies are awaited
            self._error = error

    def _ask_idle_again(self) -> None:
        found = self._replies.found
        idle_ids = {worker_id for worker_id, reply in found.items() if reply.job_id is None}
        idle = [worker for worker in self._request["workers"] if worker["worker_id"] in idle_ids]
        questions: Questions = {**self._request["questions"], "with_refs": False, "details": False, "limit": 1}
        if not idle:
            return
        for worker_id, reply in self._core_workers.ask(idle, questions, self._deadline).found.items():
            found[worker_id] = replace(found[worker_id], job_id=reply.job_id, actor_id=reply.actor_id)
