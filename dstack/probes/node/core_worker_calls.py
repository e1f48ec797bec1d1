"""Asks core workers for their running tasks, submitted tasks and refs. Seen on Ray 2.46 and 2.60.

``GetCoreWorkerStats`` is served by C++ threads: it answers while Python is blocked or holds the GIL. Channels are kept
between requests. A node may lack the modules that they need.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dstack.observed.node import CoreWorkerReply, Failure, NodeAnswer
from dstack.probes.node.core_worker_replies import (
    NEW_KIND,
    PIECES,
    STAGE,
    GrpcModules,
    explained,
    is_from,
    observed,
    omission,
    owned_values,
    places,
    timed_out,
)
from dstack.probes.node.ray_messages import REMEDY, Protocol, folder_of_module, release_of_folder
from dstack.probes.node.target_process import Problem
from dstack.probes.node.wire import CoreWorker, NodeRequest, Questions

CERTIFICATES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
"""Ray's TLS settings, from where Ray reads them; as in Ray 2.46 and 2.60."""
KEPT_S = 60.0
"""How long an unused channel is kept; then its worker has left, or nothing asks it."""
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 512 << 20), ("grpc.enable_http_proxy", 0))
"""Messages of any size that Ray may send, and no proxy: as Ray's own channels."""
OWN_CONNECTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""Otherwise a new channel shares the broken connection of the channel it replaces, and its pause before a retry."""


class CannotAsk(Exception):
    """No core worker can be asked from here; the text is the reason, one sentence."""


def load_modules(stubs: Callable[[], Any] | None = None) -> GrpcModules:
    """The modules; ``stubs`` returns an object with the generated ones, by default those of the Ray that runs here.

    Raises :class:`CannotAsk`: ``pip install ray`` brings no grpc, and a job may bring a protobuf that Ray's modules
    reject.
    """
    try:
        grpc = importlib.import_module("grpc")
        found = stubs() if stubs else _RaysOwn()
        common, core_worker, service = found.common_pb2, found.core_worker_pb2, found.core_worker_pb2_grpc
    except ModuleNotFoundError as error:
        raise CannotAsk(f"the Python module {error.name} is not installed there") from error
    except Exception as error:  # generated modules raise errors of protobuf, of several types
        raise CannotAsk(f"Ray's gRPC modules cannot be imported there: {type(error).__name__}: {error}") from error
    protocol = Protocol(PIECES, common.DESCRIPTOR.pool, release_of_folder(folder_of_module(common)))
    if vital := next((lost for lost in protocol.lost if lost.is_vital), None):
        raise CannotAsk(vital.reason)
    return GrpcModules(grpc, common, core_worker, service, protocol)


class _RaysOwn:
    """The generated modules of the Ray that runs here; a worker has some of them loaded."""

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(f"ray.core.generated.{name}")


def tls_pems() -> tuple[bytes, bytes, bytes] | None:
    """The authority, key and certificate of Ray's TLS variables in PEM; None without TLS.

    Raises :class:`OSError` if a file cannot be read, and :class:`LookupError` if a variable is not set.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority, key, certificate = (Path(os.environ[name]).read_bytes() for name in CERTIFICATES)
    return authority, key, certificate


@dataclass
class _Kept:
    channel: Any
    used_at: float


class Channels:
    """Channels by worker and address: at most ``limit`` are kept, others are closed after use."""

    def __init__(self, grpc: Any, limit: int) -> None:
        self._grpc = grpc
        self._limit = limit
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._pems: tuple[bytes, bytes, bytes] | None = None

    def prepare(self) -> None:
        """Reads Ray's TLS settings, and closes channels that were not used for long. Raises :class:`CannotAsk`."""
        try:
            self._pems = tls_pems()
        except (OSError, LookupError) as error:
            raise CannotAsk(f"TLS is on but its certificates cannot be read there: {error}") from error
        until = time.monotonic() - KEPT_S
        for key in [key for key, kept in self._kept.items() if kept.used_at < until]:
            self._kept.pop(key).channel.close()

    def take(self, worker: CoreWorker) -> tuple[Any, bool]:
        """A channel for one call, to be given back, and whether it was kept from an earlier request."""
        kept = self._kept.pop(_key(worker), None)
        return (kept.channel, True) if kept else (self._open(address_of(worker)), False)

    def give_back(self, worker: CoreWorker, channel: Any, *, is_good: bool) -> None:
        """Keeps a channel that works if there is room, and closes others."""
        if is_good and len(self._kept) < self._limit:
            self._kept[_key(worker)] = _Kept(channel, time.monotonic())
        else:
            channel.close()

    def close(self) -> None:
        """Closes all kept channels."""
        for kept in self._kept.values():
            kept.channel.close()
        self._kept.clear()

    def _open(self, address: str) -> Any:
        options = [*CHANNEL_OPTIONS, *OWN_CONNECTIONS]
        if self._pems is None:
            return self._grpc.insecure_channel(address, options=options)
        credentials = self._grpc.ssl_channel_credentials(*self._pems)
        return self._grpc.secure_channel(address, credentials, options=options)


def address_of(worker: CoreWorker) -> str:
    """``HOST:PORT``, or ``[HOST]:PORT`` where the host is an IPv6 address."""
    host = worker["ip"]
    return f"[{host}]:{worker['port']}" if ":" in host else f"{host}:{worker['port']}"


def _key(worker: CoreWorker) -> tuple[str, str]:
    return worker["worker_id"], address_of(worker)


LOCATIONS = ("CoreWorkerService", "GetObjectLocationsOwner")
"""The method that says where objects are."""
MAX_AT_ONCE = 64
"""The most calls at the same time, so that connections and threads do not grow with workers."""
MAX_WAIT_S = 1e6
"""The longest timeout of a wait; Python rejects an infinite one."""
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
    objects: tuple[str, ...] = ()
    """The objects of which it asks where they are; it asks for tasks and refs if there are none."""
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

    def ask(
        self,
        workers: Sequence[CoreWorker],
        questions: Questions,
        deadline: float = float("inf"),
        more: queue.SimpleQueue[CoreWorker | None] | None = None,
    ) -> Replies:
        """The replies of all these workers, until ``deadline``, a ``time.monotonic()``. Raises :class:`CannotAsk`.

        Others may come through ``more``, until None comes. Of a worker that is asked twice, the later reply counts.
        """
        with self._lock:
            if self._modules is None or self._channels is None:
                self._modules = load_modules(self._stubs)
                self._channels = Channels(self._modules.grpc, self._limit)
            self._channels.prepare()
            return _Round(self._modules, self._channels, questions, deadline, more).ask(workers)

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            if self._channels is not None:
                self._channels.close()


class _Round:
    """The calls of one request, of which at most :data:`MAX_AT_ONCE` are under way."""

    def __init__(
        self,
        modules: GrpcModules,
        channels: Channels,
        questions: Questions,
        deadline: float,
        more: queue.SimpleQueue[Any] | None,
    ) -> None:
        self._modules = modules
        self._channels = channels
        self._questions = questions
        self._metadata = tuple((key, value) for key, value in questions["metadata"])
        self._deadline = deadline
        self._running: set[_Call] = set()
        self._has_more = more is not None
        self._events: queue.SimpleQueue[_Call | CoreWorker | None] = more or queue.SimpleQueue()
        """The calls that have ended, and further workers, with None after the last one."""
        self._waiting: deque[CoreWorker] = deque()
        self._replies = Replies()

    def ask(self, workers: Sequence[CoreWorker]) -> Replies:
        self._waiting.extend(workers)
        while self._waiting or self._running or self._has_more:
            while self._waiting and len(self._running) < MAX_AT_ONCE:
                self._begin(self._waiting.popleft())
            if self._running or self._has_more:
                self._await_event()
        return self._replies

    def _begin(self, worker: CoreWorker, objects: Sequence[str] = ()) -> None:
        now = time.monotonic()
        timeout_s = min(self._questions["timeout_s"], self._deadline - now)
        if timeout_s <= 0:
            if not objects:
                self._fail(worker, Problem(STAGE, "it was not asked, because others did not answer in time", "timeout"))
            return
        call = _Call(worker, *self._channels.take(worker), timeout_s, now + timeout_s + GRACE_S, tuple(objects))
        stub = self._modules.service.CoreWorkerServiceStub(call.channel)
        method = stub.GetObjectLocationsOwner if objects else stub.GetCoreWorkerStats
        call.future = method.future(self._request(call), timeout=timeout_s, metadata=self._metadata)
        self._running.add(call)
        call.future.add_done_callback(lambda _: self._events.put(call))

    def _request(self, call: _Call) -> Any:
        worker_id = bytes.fromhex(call.worker["worker_id"])
        if call.objects:
            return self._modules.core_worker.GetObjectLocationsOwnerRequest(
                intended_worker_id=worker_id, object_ids=map(bytes.fromhex, call.objects)
            )
        return self._modules.core_worker.GetCoreWorkerStatsRequest(
            intended_worker_id=worker_id,
            include_memory_info=self._questions["with_refs"],
            include_task_info=True,
            limit=self._questions["limit"],
        )

    def _await_event(self) -> None:
        """Handles a call that ends or another worker, or the calls that should have ended by now."""
        until = min((one.until for one in self._running), default=self._deadline)
        try:
            event = self._events.get(timeout=min(MAX_WAIT_S, max(0.0, until - time.monotonic())))
        except queue.Empty:
            self._has_more &= time.monotonic() < self._deadline
            for late in [one for one in self._running if one.until <= time.monotonic()]:
                late.future.cancel()
                self._end(late, is_good=False)
                if not late.objects:
                    self._fail(late.worker, timed_out(late.timeout_s), late.timeout_s)
            return
        if event is None:
            self._has_more = False
        elif not isinstance(event, _Call):
            self._waiting.append(event)
        elif event in self._running:
            self._note(event)

    def _note(self, call: _Call) -> None:
        """Notes the reply of a call that ended, or its failure."""
        error = call.future.exception()
        if call.objects:
            self._end(call, is_good=error is None)
            self._note_places(call, None if error else call.future.result())
            return
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
            self._fail(worker, ENDED if reply.core_worker_stats.worker_id else OTHER_RAY)
            return
        if (left_out := omission(reply)) is not None:
            self._fail(worker, left_out)
        for lost in self._modules.protocol.lost:
            self._fail(worker, Problem("Ray", lost.reason, lost.cause, REMEDY))
        try:
            whole = self._modules.protocol.checked(reply)
            found = self._replies.found[worker["worker_id"]] = observed(whole, self._modules, self._questions)
            if found.is_cut and left_out is None:
                self._fail(worker, NEW_KIND)
            if self._questions["places"] and self._modules.protocol.has(*LOCATIONS):
                owned = owned_values(found, self._questions["places"])
                if owned:
                    self._begin(worker, owned)
        except (AttributeError, ValueError) as error:
            reason = f"its reply has another form than dstack knows: {error}"
            self._fail(worker, Problem(STAGE, reason, "malformed"))

    def _note_places(self, call: _Call, reply: Any) -> None:
        """Notes where objects are; of a failed call they stay unknown."""
        worker_id = call.worker["worker_id"]
        if reply is not None:
            whole = self._modules.protocol.checked(reply)
            known = replace(self._replies.found[worker_id], places=places(call.objects, whole))
            self._replies.found[worker_id] = known

    def _end(self, call: _Call, *, is_good: bool) -> None:
        self._running.discard(call)
        self._channels.give_back(call.worker, call.channel, is_good=is_good)

    def _fail(self, worker: CoreWorker, problem: Problem, elapsed_s: float = 0.0) -> None:
        self._replies.failures.append(problem.failure(worker["worker_id"], worker["pid"], elapsed_s))


ENDED = Problem(STAGE, "it has ended: another worker uses its port", "ended")
OTHER_RAY = Problem(
    STAGE,
    "its reply has another form than in the Ray beside dstack",
    "malformed",
    "Run dstack with the cluster's version of Ray: pip install ray==VERSION.",
)
"""Ray renumbers the fields of messages, as 2.50 did those of this reply; then the reply seems to have no id."""
TOO_LATE = "its requests to core workers did not end in time"


class AskingThread:
    """A thread that asks core workers until ``deadline``, a ``time.monotonic()``; ``more`` allows to add others."""

    def __init__(self, core_workers: CoreWorkers, request: NodeRequest, deadline: float, *, more: bool = False) -> None:
        self._core_workers = core_workers
        self._request = request
        self._deadline = deadline
        self._more: queue.SimpleQueue[CoreWorker | None] | None = queue.SimpleQueue() if more else None
        self._replies = Replies()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="dstack-ask", daemon=True)
        if request["workers"] or more:
            self._thread.start()

    def also(self, worker: CoreWorker) -> None:
        """Ask another worker, or one again, now."""
        assert self._more is not None
        self._more.put(worker)

    def finish(self, answer: NodeAnswer) -> NodeAnswer:
        """Awaits the replies; returns the answer with them and the failures, or why no core worker can be asked.

        If processes were read meanwhile, workers that had no job are asked for it again: by now, a worker may run for
        another job, even for dstack's own.
        """
        if self._more is not None:
            self._more.put(None)
        if self._thread.ident is not None:
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
            workers, questions = self._request["workers"], self._request["questions"]
            self._replies = self._core_workers.ask(workers, questions, self._deadline, self._more)
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
