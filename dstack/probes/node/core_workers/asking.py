"""Asks core workers for their running tasks, submitted tasks and refs. Seen on Ray 2.46 and 2.60.

``GetCoreWorkerStats`` is served by C++ threads: it answers while Python is blocked or holds the GIL.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dstack.observed.node import CoreWorkerReply, Failure
from dstack.probes.node.core_workers.channels import Channels, GrpcModules, address_of, load_modules
from dstack.probes.node.core_workers.replies import STAGE, explained, is_from, observed, omission, timed_out
from dstack.probes.node.reading import Problem
from dstack.probes.node.wire import CoreWorker, Questions

MAX_AT_ONCE = 64
"""The most calls at the same time, so that connections and threads do not grow with workers."""
GRACE_S = 0.5
"""How long after its own timeout the end of a call is awaited."""


@dataclass
class Replies:
    """The replies of core workers by worker id, and a failure for each missing or incomplete one."""

    found: dict[str, CoreWorkerReply] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


@dataclass(eq=False)
class _Call:
    worker: CoreWorker
    channel: Any
    is_kept: bool
    timeout_s: float
    until: float
    future: Any = None


class CoreWorkers:
    """Asks core workers, and keeps the connections to at most ``kept`` of them.

    ``stubs`` returns an object with Ray's generated modules; by default they are those of the Ray that runs here.
    """

    def __init__(self, stubs: Callable[[], Any] | None = None, *, kept: int = MAX_AT_ONCE) -> None:
        self._stubs = stubs
        self._limit = kept
        self._lock = threading.Lock()
        self._modules: GrpcModules | None = None
        self._channels: Channels | None = None

    def ask(self, workers: Sequence[CoreWorker], questions: Questions, deadline: float = float("inf")) -> Replies:
        """The replies of all these workers, until ``deadline``, a ``time.monotonic()``. Raises :class:`CannotAsk`."""
        with self._lock:
            if self._modules is None or self._channels is None:
                self._modules = load_modules(self._stubs)
                self._channels = Channels(self._modules.grpc, self._limit)
            self._channels.prepare()
            return _Round(self._modules, self._channels, questions, deadline).ask(workers)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            if self._channels is not None:
                self._channels.close()


class _Round:
    """The calls of one request, of which at most :data:`MAX_AT_ONCE` are under way."""

    def __init__(self, modules: GrpcModules, channels: Channels, questions: Questions, deadline: float) -> None:
        self._modules = modules
        self._channels = channels
        self._questions = questions
        self._metadata = tuple((key, value) for key, value in questions["metadata"])
        self._deadline = deadline
        self._running: set[_Call] = set()
        self._ended: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._replies = Replies()

    def ask(self, workers: Sequence[CoreWorker]) -> Replies:
        waiting = deque(workers)
        while waiting or self._running:
            while waiting and len(self._running) < MAX_AT_ONCE:
                self._begin(waiting.popleft())
            self._await_one()
        return self._replies

    def _begin(self, worker: CoreWorker) -> None:
        now = time.monotonic()
        timeout_s = min(self._questions["timeout_s"], self._deadline - now)
        if timeout_s <= 0:
            self._fail(worker, Problem(STAGE, "it was not asked, because others did not answer in time", "timeout"))
            return
        request = self._modules.core_worker.GetCoreWorkerStatsRequest(
            intended_worker_id=bytes.fromhex(worker["worker_id"]),
            include_memory_info=self._questions["with_refs"],
            include_task_info=True,
            limit=self._questions["limit"],
        )
        call = _Call(worker, *self._channels.take(worker), timeout_s, now + timeout_s + GRACE_S)
        stub = self._modules.service.CoreWorkerServiceStub(call.channel)
        call.future = stub.GetCoreWorkerStats.future(request, timeout=timeout_s, metadata=self._metadata)
        self._running.add(call)
        call.future.add_done_callback(lambda _: self._ended.put(call))

    def _await_one(self) -> None:
        """Handles one call that ends, or those that should have ended by now."""
        if not self._running:
            return
        try:
            call = self._ended.get(timeout=max(0.0, min(one.until for one in self._running) - time.monotonic()))
        except queue.Empty:
            for late in [one for one in self._running if one.until <= time.monotonic()]:
                late.future.cancel()
                self._end(late, is_good=False)
                self._fail(late.worker, timed_out(late.timeout_s), late.timeout_s)
            return
        if call in self._running:
            self._note(call)

    def _note(self, call: _Call) -> None:
        """Notes the reply of a call that ended, or its failure."""
        error = call.future.exception()
        if error is None:
            self._end(call, is_good=is_from(call.worker, call.future.result()))
            self._note_reply(call.worker, call.future.result())
            return
        self._end(call, is_good=False)
        codes = self._modules.grpc.StatusCode
        if call.is_kept and error.code() == codes.UNAVAILABLE:
            self._begin(call.worker)
            return
        problem = explained(codes, error, address_of(call.worker), call.timeout_s)
        self._fail(call.worker, problem, call.timeout_s if problem.cause == "timeout" else 0.0)

    def _note_reply(self, worker: CoreWorker, reply: Any) -> None:
        if not is_from(worker, reply):
            self._fail(worker, Problem(STAGE, "it has ended: another worker uses its port", "ended"))
            return
        if left_out := omission(reply):
            self._fail(worker, left_out)
        try:
            self._replies.found[worker["worker_id"]] = observed(reply, self._modules, self._questions)
        except (AttributeError, ValueError) as error:
            reason = f"its reply has another form than those of Ray 2.46 to 2.60: {error}"
            self._fail(worker, Problem(STAGE, reason, "malformed"))

    def _end(self, call: _Call, *, is_good: bool) -> None:
        self._running.discard(call)
        self._channels.give_back(call.worker, call.channel, is_good=is_good)

    def _fail(self, worker: CoreWorker, problem: Problem, elapsed_s: float = 0.0) -> None:
        self._replies.failures.append(
            Failure(
                stage=problem.stage,
                reason=problem.reason,
                cause=problem.cause,
                worker_id=worker["worker_id"],
                pid=worker["pid"],
                elapsed_s=round(elapsed_s, 2),
            )
        )
