"""Task events from real servers: a stand-in for the GCS and one for the dashboard head, which may fail in many ways."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray.core.generated import common_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from dstack.observed.node import Cause
from dstack.probes.connection.connect import Cluster
from dstack.probes.ray_state import dashboard_head, event_source
from dstack.probes.ray_state.event_source import DIVIDED, EventReplies, ask_for_events

SESSION, TOKEN = "session_of_this_cluster", "secret"
ALL = gcs_service_pb2.GetTaskEventsRequest()


def task(number: int, *states: int, kind: int = common_pb2.NORMAL_TASK) -> Any:
    row = gcs_pb2.TaskEvents(task_id=bytes([number]) * 24, job_id=b"\1\0\0\0")
    row.task_info.type = kind
    for state in states:
        row.state_updates.state_ts_ns[state] = 10**18 + state
    return row


ENDED = (common_pb2.PENDING_ARGS_AVAIL, common_pb2.FINISHED)
RUN = (common_pb2.PENDING_ARGS_AVAIL, common_pb2.RUNNING, common_pb2.FINISHED)
DRIVER = task(9, common_pb2.RUNNING, kind=common_pb2.DRIVER_TASK)


def reply_of(*rows: Any, truncated: int = 0) -> Any:
    return gcs_service_pb2.GetTaskEventsReply(
        events_by_task=rows, num_total_stored=len(rows) + truncated, num_truncated=truncated
    )


@dataclass
class Gcs(gcs_service_pb2_grpc.TaskInfoGcsServiceServicer, gcs_service_pb2_grpc.InternalKVGcsServiceServicer):  # type: ignore[misc]
    """The task events of the GCS, and its keys."""

    events: Any
    keys: dict[bytes, bytes]

    def GetTaskEvents(self, request: Any, context: Any) -> Any:
        return self.events

    def InternalKVGet(self, request: Any, context: Any) -> Any:
        return gcs_service_pb2.InternalKVGetReply(value=self.keys.get(request.key, b""))


@dataclass
class Head:
    """How the dashboard head answers: with ``events``, after ``answer`` has written something else or nothing."""

    events: Any
    session: str = SESSION
    answer: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def respond(self, handler: BaseHTTPRequestHandler) -> None:
        """The reply to a request."""
        handler.rfile.read(int(handler.headers.get("content-length", 0)))
        self.requests.append((handler.path, {name.lower(): value for name, value in handler.headers.items()}))
        if self.answer(handler):
            return
        is_query = handler.path == event_source.QUERY
        send(
            handler,
            200,
            self.events.SerializeToString() if is_query else json.dumps({"session_name": self.session}).encode(),
        )


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(head: Head, certificate: Path | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            head.respond(self)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up on purpose
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"{'https://' if certificate else ''}127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def cluster(events: Any, dashboard: str = "", token: str | None = None) -> Iterator[Cluster]:
    """A GCS with these events, which knows the dashboard head at that address."""
    gcs = Gcs(events, {b"dashboard": dashboard.encode(), b"session_name": SESSION.encode()})
    server = grpc.server(futures.ThreadPoolExecutor(2))
    gcs_service_pb2_grpc.add_TaskInfoGcsServiceServicer_to_server(gcs, server)
    gcs_service_pb2_grpc.add_InternalKVGcsServiceServicer_to_server(gcs, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Cluster(f"127.0.0.1:{port}", "2.60.0", token)
    server.stop(0).wait()


def asked(head: Head, events: Any = None, timeout_s: float = 5.0, requests: int = 1) -> EventReplies:
    with serving(head) as dashboard, cluster(events or reply_of(), dashboard, TOKEN) as there:
        return ask_for_events(there, [lambda: ALL] * requests, timeout_s)


def test_the_dashboard_head_has_the_events_that_the_gcs_has_not() -> None:
    head = Head(reply_of(task(1, *RUN)))

    found = asked(head, requests=2)

    assert (found.replies, found.failure) == ([head.events, head.events], None)
    assert [path for path, _ in head.requests] == [dashboard_head.VERSION, event_source.QUERY, event_source.QUERY]
    assert {headers["authorization"] for _, headers in head.requests} == {f"Bearer {TOKEN}"}
    assert head.requests[1][1]["content-type"] == "application/octet-stream"


def test_a_connection_for_each_request_is_enough() -> None:
    def closes(handler: BaseHTTPRequestHandler) -> bool:
        handler.protocol_version, handler.close_connection = "HTTP/1.0", True
        return False

    head = Head(reply_of(task(1, *RUN)), answer=closes)

    assert asked(head, requests=2) == EventReplies([head.events, head.events])


@pytest.mark.parametrize(
    "events", [reply_of(task(1, *RUN)), reply_of(task(1, common_pb2.PENDING_ARGS_AVAIL)), reply_of(truncated=7)]
)
def test_it_is_not_asked_where_the_gcs_has_them(events: Any) -> None:
    head = Head(reply_of(task(2, *RUN)))

    assert asked(head, events) == EventReplies([events])
    assert head.requests == []


def test_events_in_both_places_are_joined_and_what_they_lack_is_said() -> None:
    head = Head(reply_of(task(2, *RUN), truncated=5))

    found = asked(head, reply_of(task(1, *ENDED), DRIVER, truncated=3))

    (both,) = found.replies
    assert [row.task_id[0] for row in both.events_by_task] == [1, 9, 2]
    assert (both.num_total_stored, both.num_truncated) == (11, 8)
    assert found.failure == DIVIDED


def test_ends_without_runs_are_no_failure_where_no_dashboard_head_has_events() -> None:
    events = reply_of(task(1, *ENDED))

    assert asked(Head(reply_of()), events) == EventReplies([events])


def status(number: int) -> Callable[[BaseHTTPRequestHandler], bool]:
    def answer(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, number, b"no")
        return True

    return answer


def cut(handler: BaseHTTPRequestHandler) -> bool:
    send(handler, 200, b"{", length=1000)
    handler.close_connection = True
    return True


def other_bytes(handler: BaseHTTPRequestHandler) -> bool:
    if handler.path == event_source.QUERY:
        send(handler, 200, b"\xff\xff\xff")
    return handler.path == event_source.QUERY


def list_of_versions(handler: BaseHTTPRequestHandler) -> bool:
    send(handler, 200, b"[1]")
    return True


@pytest.mark.parametrize(
    ("head", "cause", "words"),
    [
        (Head(reply_of()), "missing", "the dashboard head has none"),
        (Head(reply_of(), answer=status(404)), "missing", "does not serve them"),
        (Head(reply_of(), answer=status(401)), "permission", "rejects the token (401)"),
        (Head(reply_of(), answer=status(403)), "permission", "rejects the token (403)"),
        (Head(reply_of(), answer=status(500)), "other", "answered 500"),
        (Head(reply_of(task(1, *RUN)), session="another"), "identity", "is that of another cluster"),
        (Head(reply_of(), answer=cut), "malformed", "is cut or not its own"),
        (Head(reply_of(), answer=other_bytes), "malformed", "is cut or not its own"),
        (Head(reply_of(), answer=list_of_versions), "malformed", "is cut or not its own"),
    ],
)
def test_without_events_anywhere_the_reason_is_that_of_the_dashboard_head(head: Head, cause: Cause, words: str) -> None:
    found = asked(head)

    assert found.replies == [reply_of()]
    assert found.failure is not None
    assert (found.failure.stage, found.failure.cause) == ("task events", cause)
    assert words in found.failure.reason
    assert found.failure.remedy


@pytest.mark.parametrize(
    ("dashboard", "cause", "words"),
    [
        ("", "missing", "does not run"),
        ("127.0.0.1:-1", "other", "cannot be asked"),
        (":0", "missing", "serves no HTTP"),
    ],
)
def test_an_address_that_is_none(dashboard: str, cause: Cause, words: str) -> None:
    with cluster(reply_of(), dashboard) as there:
        failure = ask_for_events(there, [lambda: ALL], 5.0).failure

    assert failure is not None
    assert failure.cause == cause
    assert words in failure.reason


def test_a_dashboard_head_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with cluster(reply_of(), f"127.0.0.1:{port}") as there:
        failure = ask_for_events(there, [lambda: ALL], 5.0).failure

    assert failure is not None
    assert failure.cause == "unreachable"
    assert f"at 127.0.0.1:{port}: Connection refused" in failure.reason


def test_a_loopback_address_of_another_host_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens there on this host is not the dashboard head of that cluster, and must not get its token."""
    assert [dashboard_head._is_here(host) for host in ("127.0.0.1", "::1", "192.0.2.77")] == [True, True, False]
    monkeypatch.setattr(dashboard_head, "_is_here", lambda host: False)
    head = Head(reply_of(task(1, *RUN)))

    failure = asked(head).failure

    assert failure is not None
    assert failure.cause == "unreachable"
    assert "listens only on its own host" in failure.reason
    assert head.requests == []


def trickle(handler: BaseHTTPRequestHandler) -> bool:
    """Never complete, and never silent for long."""
    if handler.path != event_source.QUERY:
        return False
    handler.send_response(200)
    handler.send_header("content-length", "100000")
    handler.end_headers()
    while True:
        handler.wfile.write(b"\0")
        time.sleep(0.02)


def silent(handler: BaseHTTPRequestHandler) -> bool:
    time.sleep(60.0)
    return True


@pytest.mark.parametrize("answer", [trickle, silent])
def test_a_slow_dashboard_head_is_given_up_in_time(answer: Callable[[BaseHTTPRequestHandler], bool]) -> None:
    began = time.monotonic()

    found = asked(Head(reply_of(), answer=answer), timeout_s=0.5)

    assert time.monotonic() - began < 5.0
    assert found.failure is not None
    assert found.failure.cause == "timeout"


def test_replies_that_came_in_time_are_kept() -> None:
    def second_is_late(handler: BaseHTTPRequestHandler) -> bool:
        return len(head.requests) > 2 and silent(handler)

    head = Head(reply_of(task(1, *RUN)), answer=second_is_late)

    found = asked(head, timeout_s=1.0, requests=2)

    first, second = found.replies
    assert first == head.events
    assert second.cause == "timeout"


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "both.pem"
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ray"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*openssl, *names, "-keyout", str(pem), "-out", str(tmp_path / "certificate")], check=True, capture_output=True
    )
    pem.write_text(pem.read_text() + (tmp_path / "certificate").read_text())
    head = Head(reply_of(task(1, *RUN)))

    with serving(head, pem) as dashboard, cluster(reply_of(), dashboard) as there:
        refused = ask_for_events(there, [lambda: ALL], 5.0).failure
        monkeypatch.setenv("RAY_TLS_CA_CERT", str(tmp_path / "certificate"))
        trusted = ask_for_events(there, [lambda: ALL], 5.0)

    assert refused is not None
    assert "certificate" in refused.reason.lower()
    assert trusted == EventReplies([head.events])
