"""Asks the dashboard head by HTTP for what Ray has only there: task events, events of the platform.

The GCS has its address. It answers only if ``ray[default]`` is installed on the head, and to other hosts only with
``--dashboard-host``.
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

from dstack.observed.node import Cause
from dstack.probes.connection.background import begin, within
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import split_address
from dstack.probes.connection.ray_stubs import gcs_service_pb2
from dstack.probes.connection.rpc import KV, CallFailure, UnaryCall, call_all
from dstack.probes.node.ray_messages import Unusable

VERSION = "/api/version"
KEYS = ((b"dashboard", b"dashboard"), (b"session", b"session_name"))
"""Namespace and key of the address of the dashboard head, and of the name of the cluster's session."""
NOT_SERVED = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
ANSWERS_S = 3.0
"""The time for its first reply, which needs no events."""
LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A request to the dashboard head, and what makes a value of the body of its reply.

    ``body`` makes a message that this Ray may not have.
    """

    method: str
    path: str
    decode: Callable[[bytes], Any]
    body: Callable[[], bytes] | None = None


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


def ask_dashboard_head(cluster: Cluster, requests: Sequence[HttpCall], timeout_s: float) -> list[Any] | CallFailure:
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
    calls = [UnaryCall(cluster.address, KV, "InternalKVGet", key, timeout_s) for key in keys]
    found = call_all(calls, cluster.metadata)
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
    requests: Sequence[HttpCall],
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
        content = request.body() if request.body else None
        replies.append(request.decode(_answer(connection, request.method, request.path, content, headers)))
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
