"""Asks for task events where they are: in the GCS, or in the dashboard head if Ray reports them there.

Ray 2.58 to 2.60 do so if RAY_enable_task_events_to_dashboard_head and four more variables are set. The dashboard head
then answers ``POST /api/task_events/query`` with the messages of the GCS; others do not know the path. It reads all
events for each request: 0.5 to 0.8 s with 60,000 of them, and 1.6 s to give all (busy machine).
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, urlsplit

from google.protobuf.message import DecodeError

from dstack.observed.node import Cause, Failure
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.connect import WHERE_TOKENS_ARE, Cluster
from dstack.probes.connection.hosts import split_address
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.connection.ray_stubs import common_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import KV, CallFailure, Service, UnaryCall, call_all, gcs_service
from dstack.probes.node.ray_messages import Unusable, name_of

QUERY, VERSION = "/api/task_events/query", "/api/version"
KEYS = ((b"dashboard", b"dashboard"), (b"session", b"session_name"))
"""Namespace and key of the address of the dashboard head, and of the name of the cluster's session."""
NOT_SERVED = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
ANSWERS_S = 3.0
"""The time for its first reply, which needs no events."""
LOOPBACK = ("127.", "localhost", "::1")
REMEDIES: dict[Cause, str] = {
    "unreachable": "Start the head with ray[default] and its dashboard, and with --dashboard-host=0.0.0.0 for other"
    " hosts.",
    "timeout": "Check the dashboard's processes on the head node, or use a longer --timeout.",
    "permission": WHERE_TOKENS_ARE,
}
TURN_ON = (
    "Start all nodes with ray[default] and the head with its dashboard, or without"
    " RAY_enable_core_worker_task_event_to_gcs=0. RAY_task_events_report_interval_ms=0 turns task events off."
)
DIVIDED = Failure(
    stage="task events",
    reason="drivers report task events to the GCS, and workers to the dashboard head: it is unknown when tasks of these"
    " drivers ran",
    cause="missing",
    remedy="Start drivers with the same RAY_enable_... variables as the cluster.",
)


@dataclass(frozen=True, slots=True)
class EventReplies:
    """A reply, or a :class:`CallFailure`, for each request; ``failure`` says what Ray should have and has not."""

    replies: list[Any]
    failure: Failure | None = None


Message = Callable[[], Any]
"""Makes the message of a request, which this Ray may not have."""


def ask_for_events(cluster: Cluster, requests: Sequence[Message], timeout_s: float) -> EventReplies:
    """Asks the GCS, and the dashboard head if the GCS has nothing, or ends of tasks without the runs before."""
    of_gcs = _ask_gcs(cluster, gcs_service("TaskInfo"), "GetTaskEvents", requests, timeout_s)
    if any(isinstance(reply, CallFailure) for reply in of_gcs) or _is_whole(of_gcs):
        return EventReplies(of_gcs)
    of_head = _ask_dashboard_head(cluster, requests, timeout_s)
    if not isinstance(of_head, CallFailure) and not any(map(_stored, of_head)):
        of_head = CallFailure("has none", "missing")
    if isinstance(of_head, CallFailure):
        return EventReplies(of_gcs, None if any(map(_stored, of_gcs)) else _absent(of_head))
    if not any(map(_stored, of_gcs)):
        return EventReplies(of_head)
    return EventReplies(list(map(_joined, of_gcs, of_head)), DIVIDED)


def _ask_gcs(
    cluster: Cluster, service: Service, method: str, requests: Sequence[Message], timeout_s: float
) -> list[Any]:
    calls = [UnaryCall(cluster.address, service, method, request, timeout_s) for request in requests]
    return call_all(calls, cluster.metadata)


def _is_whole(replies: Sequence[Any]) -> bool:
    """Whether there are events, and executors reported theirs too: the tasks that have ended ran before."""

    def has(state: int) -> bool:
        rows = (row for reply in replies for row in reply.events_by_task)
        return any(state in row.state_updates.state_ts_ns and not _is_driver(row) for row in rows)

    return any(map(_stored, replies)) and (has(common_pb2.RUNNING) or not has(common_pb2.FINISHED))


def _is_driver(row: Any) -> bool:
    return name_of(common_pb2.TaskType, row.task_info.type) == "DRIVER_TASK"


def _stored(reply: Any) -> int:
    return 0 if isinstance(reply, CallFailure) else int(reply.num_total_stored) or len(reply.events_by_task)


@dataclass(frozen=True, slots=True)
class _Joined:
    """Two replies as one; they have no attempt in common, as either has those that their owners report there."""

    events_by_task: list[Any]
    num_total_stored: int
    num_truncated: int
    num_status_task_events_dropped: int


def _joined(one: Any, other: Any) -> Any:
    if isinstance(other, CallFailure):
        return one
    return _Joined(
        [*one.events_by_task, *other.events_by_task],
        one.num_total_stored + other.num_total_stored,
        one.num_truncated + other.num_truncated,
        one.num_status_task_events_dropped + other.num_status_task_events_dropped,
    )


def _absent(head: CallFailure) -> Failure:
    return Failure(
        stage="task events",
        reason=f"Ray has no events of the tasks that have run: the GCS has none, and the dashboard head {head.reason}",
        cause=head.cause,
        remedy=REMEDIES.get(head.cause, TURN_ON),
    )


# The dashboard head


@dataclass(frozen=True, slots=True)
class _Head:
    """Where the dashboard head answers, and the session that it must be of."""

    url: SplitResult
    session: str

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        host, port = self.url.hostname or "", self.url.port
        if self.url.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        trusted = ssl.create_default_context(cafile=os.environ.get("RAY_TLS_CA_CERT"))
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=trusted)


class _NoAnswer(Exception):
    """The dashboard head does not answer a request; ``failure`` says why."""

    def __init__(self, reason: str, cause: Cause = "other") -> None:
        self.failure = CallFailure(reason, cause)


def _ask_dashboard_head(cluster: Cluster, requests: Sequence[Message], timeout_s: float) -> list[Any] | CallFailure:
    """A reply, or a failure, for each request; one failure if there is no reply at all."""
    deadline = time.monotonic() + timeout_s
    try:
        head = _find(cluster, timeout_s)
        connection = head.connection(min(timeout_s, ANSWERS_S))
    except _NoAnswer as error:
        return error.failure
    except (OSError, ValueError) as error:
        return CallFailure(f"cannot be asked: {error}")
    replies: list[Any] = []
    work = begin(lambda: _ask_all(connection, head, requests, dict(cluster.metadata), replies))
    try:
        done = within(work, deadline - time.monotonic())
        failure = None if done else CallFailure(f"at {head.url.netloc} did not answer in time", "timeout")
    except Exception as error:
        failure = _explained(error, head.url.netloc)
    finally:
        _cut(connection)
    in_time = list(replies)
    if failure is not None and not in_time:
        return failure
    return [*in_time, *[failure] * (len(requests) - len(in_time))]


def _find(cluster: Cluster, timeout_s: float) -> _Head:
    """The head by the GCS's keys."""
    keys = [partial(_request_of_key, namespace, key) for namespace, key in KEYS]
    found = _ask_gcs(cluster, KV, "InternalKVGet", keys, timeout_s)
    if failed := next((one for one in found if isinstance(one, CallFailure)), None):
        raise _NoAnswer(f"is not known: {failed.reason}", failed.cause)
    address, session = (one.value.decode(errors="replace") for one in found)
    if not address:
        raise _NoAnswer("does not run", "missing")
    url = urlsplit(address if "//" in address else f"http://{address}")
    if not url.hostname or not url.port:
        raise _NoAnswer("serves no HTTP", "missing")
    if url.hostname.startswith(LOOPBACK) and not _is_here(split_address(cluster.address)[0]):
        raise _NoAnswer(f"listens only on its own host, at {url.netloc}", "unreachable")
    return _Head(url, session)


def _request_of_key(namespace: bytes, key: bytes) -> Any:
    return gcs_service_pb2.InternalKVGetRequest(namespace=namespace, key=key)


def _is_here(host: str) -> bool:
    """Whether this host has the address: only then can a socket be bound to it."""
    with suppress(OSError), socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        return True
    return False


def _ask_all(
    connection: http.client.HTTPConnection,
    head: _Head,
    requests: Sequence[Message],
    headers: dict[str, str],
    replies: list[Any],
) -> bool:
    """Adds the replies one by one, as they come."""
    if json.loads(_answer(connection, "GET", VERSION, None, headers)).get("session_name") != head.session:
        raise _NoAnswer(f"at {head.url.netloc} is that of another cluster", "identity")
    connection.timeout = None  # the caller ends it
    if connection.sock is not None:
        connection.sock.settimeout(None)
    headers = {**headers, "Content-Type": "application/octet-stream"}
    for request in requests:
        body = _answer(connection, "POST", QUERY, request().SerializeToString(), headers)
        replies.append(protocol().checked(gcs_service_pb2.GetTaskEventsReply.FromString(body)))
    return True


def _answer(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> bytes:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    data = response.read()
    if response.status == HTTPStatus.OK:
        return data
    if response.status in NOT_SERVED:
        raise _NoAnswer("does not serve them", "missing")
    if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise _NoAnswer(f"rejects the token ({response.status})", "permission")
    raise _NoAnswer(f"answered {response.status} {response.reason}")


def _explained(error: Exception, address: str) -> CallFailure:
    if isinstance(error, _NoAnswer):
        return error.failure
    if isinstance(error, Unusable):
        return CallFailure(f"cannot be understood: {error}", "malformed")
    if isinstance(error, TimeoutError):
        return CallFailure(f"at {address} did not answer in time", "timeout")
    if isinstance(error, OSError):
        return CallFailure(f"cannot be reached at {address}: {error.strerror or error}", "unreachable")
    if isinstance(error, (http.client.HTTPException, DecodeError, ValueError, AttributeError)):
        return CallFailure(f"at {address} sent a reply that is cut or not its own", "malformed")
    raise error


def _cut(connection: http.client.HTTPConnection) -> None:
    """Closes the connection, also while its thread waits for data."""
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
