"""Asks core workers for their running tasks, submitted tasks and refs. Seen on Ray 2.46 and 2.60.

``GetCoreWorkerStats`` is served by C++ threads: it answers while Python is blocked or holds the GIL.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dstack.probes.node import wire

MAX_AT_ONCE = 64
"""The most calls at the same time, and the most connections that are kept."""
MAX_PARTS = 20
ENDED = ("FINISHED", "FAILED")
CERTIFICATES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 512 << 20), ("grpc.enable_http_proxy", 0))
"""Messages of any size that Ray may send, and no proxy: as Ray's own channels."""

_STUBS = ("common_pb2", "core_worker_pb2", "core_worker_pb2_grpc")
_IN_GROUP = re.compile(r".+_group_(?:\d+_)?([0-9a-f]{36})")


@dataclass
class Replies:
    """The replies of core workers by worker id, and a failure for each missing or incomplete one."""

    found: dict[str, wire.CoreWorkerData]
    failures: list[wire.FailureData]


class CannotAsk(Exception):
    """No core worker can be asked here; the text says why."""


class CoreWorkers:
    """Asks core workers, and keeps the connections to them until others are asked.

    ``stubs`` returns an object with Ray's generated modules; by default those of the Ray that runs here. grpc is no
    requirement of Ray itself, so it may be missing.
    """

    def __init__(self, stubs: Callable[[], Any] | None = None) -> None:
        self._load = stubs or _rays_stubs
        self._channels: dict[str, Any] = {}
        self._environments: dict[str, list[str]] = {}
        self._stubs: Any = None
        self._grpc: Any = None

    def ask(self, workers: Sequence[wire.CoreWorker], questions: wire.Questions) -> Replies:
        """The replies of all these workers. Raises :class:`CannotAsk`."""
        self._prepare()
        self._environments.clear()
        self._keep({_address(worker) for worker in workers[:MAX_AT_ONCE]})
        replies = Replies({}, [])
        if not workers:
            return replies
        with ThreadPoolExecutor(min(MAX_AT_ONCE, len(workers))) as pool:
            for worker, reply in zip(workers, pool.map(lambda one: self._reply(one, questions), workers), strict=True):
                if problem := _objection(worker, reply):
                    replies.failures.append(problem)
                if _is_from(worker, reply):
                    replies.found[worker["worker_id"]] = self._data(reply, questions)
        return replies

    def close(self) -> None:
        """Closes all connections."""
        self._keep(set())

    def _prepare(self) -> None:
        if self._stubs is None:
            try:
                self._grpc = importlib.import_module("grpc")
                self._stubs = self._load()
                tls_pems()
            except ImportError as error:
                raise CannotAsk(f"gRPC cannot be loaded there ({error})") from error
            except (OSError, LookupError) as error:
                raise CannotAsk(f"the certificates for TLS cannot be read there ({error})") from error

    def _keep(self, addresses: set[str]) -> None:
        """Has a channel to each of these addresses, and no other one."""
        for address in self._channels.keys() - addresses:
            self._channels.pop(address).close()
        for address in addresses - self._channels.keys():
            self._channels[address] = self._open(address)

    def _reply(self, worker: wire.CoreWorker, questions: wire.Questions) -> Any:
        """The reply, or the failure."""
        request = self._stubs.core_worker_pb2.GetCoreWorkerStatsRequest(
            intended_worker_id=bytes.fromhex(worker["worker_id"]),
            include_memory_info=questions["with_refs"],
            include_task_info=True,
            limit=questions["limit"],
        )
        address, began, timeout_s = _address(worker), time.monotonic(), questions["timeout_s"]
        channel = self._channels.get(address) or self._open(address)
        is_kept = address in self._channels
        try:
            stub = self._stubs.core_worker_pb2_grpc.CoreWorkerServiceStub(channel)
            metadata = tuple(tuple(pair) for pair in questions["metadata"])
            return stub.GetCoreWorkerStats(request, timeout=timeout_s, metadata=metadata)
        except self._grpc.RpcError as error:
            is_kept = False  # a failed channel connects again only after a pause
            self._channels.pop(address, None)
            return _failure(worker, *self._explained(error, address, timeout_s), time.monotonic() - began)
        finally:
            if not is_kept:
                channel.close()

    def _open(self, address: str) -> Any:
        pems = tls_pems()
        if pems is None:
            return self._grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        return self._grpc.secure_channel(address, self._grpc.ssl_channel_credentials(*pems), options=CHANNEL_OPTIONS)

    def _explained(self, error: Any, address: str, timeout_s: float) -> tuple[str, str]:
        """The reason and the cause of a failed call."""
        code, codes = error.code(), self._grpc.StatusCode
        if code == codes.DEADLINE_EXCEEDED:
            return f"no answer within {timeout_s:.1f} s: stopped, overloaded, or its network is down", "timeout"
        if code == codes.UNAVAILABLE:
            return f"nothing answers at {address}: the process has ended, or its network is down", "unreachable"
        if code == codes.UNAUTHENTICATED:
            return "it rejects the token", "permission"
        return f"it returned the error {code.name.lower()}: {str(error.details())[:120]}", "other"

    def _data(self, reply: Any, questions: wire.Questions) -> wire.CoreWorkerData:
        stats = reply.core_worker_stats
        refs = [self._ref(row) for row in stats.object_refs]
        job_id, actor_id = stats.job_id.hex(), stats.actor_id.hex()
        return {
            "job_id": None if not job_id.strip("f") else job_id,
            "actor_id": None if not actor_id.strip("f") else actor_id,
            "running_task_ids": [task_id.hex() for task_id in reply.running_task_ids],
            "held": {n: sum(s.allocation for s in held.resource_slots) for n, held in stats.used_resources.items()},
            "executed_tasks": stats.num_executed_tasks,
            "is_cut": len(reply.owned_task_info_entries) < reply.tasks_total,
            "counters": _counters(reply),
            "tasks": self._tasks(reply.owned_task_info_entries, refs, details=questions["details"]),
            "refs": refs,
        }

    def _ref(self, row: Any) -> wire.RefData:
        state = self._stubs.common_pb2.TaskStatus.Name(row.task_status)
        ref: wire.RefData = {"ref": row.object_id.hex(), "size_bytes": row.object_size}
        if state != "NIL":
            ref["state"] = state
        if row.submitted_task_ref_count:
            ref["argument_uses"] = row.submitted_task_ref_count
        if row.local_ref_count:
            ref["local_uses"] = row.local_ref_count
        if row.contained_in_owned or row.pinned_in_memory:
            ref["is_contained"] = True
        if row.attempt_number:
            ref["attempt"] = row.attempt_number
        return ref

    def _tasks(self, rows: Iterable[Any], refs: Sequence[wire.RefData], *, details: bool) -> list[wire.TaskData]:
        attempts = {ref["ref"][:48]: ref["attempt"] for ref in refs if "attempt" in ref}
        items = Counter(ref["ref"][:48] for ref in refs if _is_item(ref))
        state_of = self._stubs.common_pb2.TaskStatus.Name
        with_states = ((row, state_of(row.scheduling_state)) for row in rows)
        pending = ((row, state) for row, state in with_states if state not in ENDED)
        if not details:
            return [{"task_id": row.task_id.hex(), "state": state} for row, state in pending]
        return [self._task(row, state, attempts, items) for row, state in pending]

    def _task(self, row: Any, state: str, attempts: Mapping[str, int], items: Mapping[str, int]) -> wire.TaskData:
        task_id = row.task_id.hex()
        task: wire.TaskData = {
            "task_id": task_id,
            "state": state,
            "name": row.name or row.func_or_class_name,
            "kind": self._stubs.common_pb2.TaskType.Name(row.type),
            "job_id": row.job_id.hex(),
            "actor_id": row.actor_id.hex() or None,
            "parent_task_id": row.parent_task_id.hex() or None,
            "node_id": row.node_id.hex() or None,
            "attempt": attempts.get(task_id, 0),
            "required_resources": dict(row.required_resources),
            "placement_group_id": row.placement_group_id.hex() or group_asked_for(row.required_resources),
            "label_selector": dict(getattr(row, "label_selector", {})),
            "environment": self._environment(row.runtime_env_info.serialized_runtime_env),
            "items": items.get(task_id, 0),
        }
        return task

    def _environment(self, serialized: str) -> list[str]:
        if serialized not in self._environments:
            self._environments[serialized] = list(environment_parts(serialized))
        return self._environments[serialized]


def tls_pems() -> tuple[bytes, bytes, bytes] | None:
    """The authority, key and certificate of Ray's TLS variables; None without TLS. As in Ray 2.46 and 2.60.

    Raises :class:`OSError` or :class:`LookupError`.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority, key, certificate = (Path(os.environ[name]).read_bytes() for name in CERTIFICATES)
    return authority, key, certificate


def environment_parts(serialized: str) -> tuple[str, ...]:
    """The names of the parts of a runtime environment, as Ray serialises it to JSON; none if it is malformed."""
    with suppress(ValueError, RecursionError):
        parts = json.loads(serialized or "{}")
        if isinstance(parts, dict):
            return tuple(sorted(name for name in parts if not name.startswith("_")))[:MAX_PARTS]
    return ()


def group_asked_for(resources: Iterable[str]) -> str | None:
    """The placement group that a task asks for by the names of its resources, as ``CPU_group_0_ID``.

    Its owner fills in no id of the group, on Ray 2.46 to 2.60.
    """
    found = (_IN_GROUP.fullmatch(name) for name in resources)
    return next((match[1] for match in found if match), None)


def _rays_stubs() -> Any:
    """The generated modules of Ray; a worker has them loaded."""
    found = {name: importlib.import_module(f"ray.core.generated.{name}") for name in _STUBS}
    return SimpleNamespace(**found)


def _address(worker: wire.CoreWorker) -> str:
    host = worker["ip"]
    return f"[{host}]:{worker['port']}" if ":" in host else f"{host}:{worker['port']}"


def _is_failure(reply: Any) -> bool:
    return isinstance(reply, dict)


def _is_from(worker: wire.CoreWorker, reply: Any) -> bool:
    """Whether this worker replied: Ray does not enforce ``intended_worker_id``, and ports are used again."""
    return not _is_failure(reply) and reply.core_worker_stats.worker_id.hex() == worker["worker_id"]


def _objection(worker: wire.CoreWorker, reply: Any) -> wire.FailureData | None:
    if _is_failure(reply):
        return reply  # type: ignore[no-any-return]
    if not _is_from(worker, reply):
        return _failure(worker, "it has ended: another worker uses its port", "ended")
    listed, total = len(reply.owned_task_info_entries), reply.tasks_total
    if listed < total:
        return _failure(worker, f"it returned only {listed} of its {total} tasks", "truncated")
    refs, refs_total = len(reply.core_worker_stats.object_refs), reply.core_worker_stats.objects_total
    return (
        _failure(worker, f"it returned only {refs} of its {refs_total} refs", "truncated")
        if refs < refs_total
        else None
    )


def _failure(worker: wire.CoreWorker, reason: str, cause: str, elapsed_s: float = 0.0) -> wire.FailureData:
    return {
        "stage": "core worker",
        "reason": reason,
        "cause": cause,
        "pid": worker["pid"],
        "worker_id": worker["worker_id"],
        "elapsed_s": round(elapsed_s, 2),
    }


def _counters(reply: Any) -> list[int]:
    stats = reply.core_worker_stats
    return [
        reply.tasks_total,
        stats.num_pending_tasks,
        stats.num_executed_tasks,
        stats.num_running_tasks,
        stats.task_queue_length,
        stats.num_owned_objects,
        stats.num_owned_actors,
        stats.num_object_refs_in_scope,
        stats.num_local_objects,
    ]


def _is_item(ref: wire.RefData) -> bool:
    """Whether it is a generator's value: a ref of an unfinished task of this worker other than its first."""
    is_unfinished = ref.get("state") not in (None, *ENDED)
    return is_unfinished and ref["size_bytes"] >= 0 and int.from_bytes(bytes.fromhex(ref["ref"][48:56]), "little") > 1
