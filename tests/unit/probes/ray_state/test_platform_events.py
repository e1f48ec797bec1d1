"""Warnings of Kubernetes, by a reply of the dashboard head of Ray 2.60 that watched a stand-in for its API."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from dstack.model.snapshot import PlatformEvent
from dstack.probes.ray_state import dashboard_head
from dstack.probes.ray_state.dashboard_head import VERSION
from dstack.probes.ray_state.platform_events import MAX_EVENTS, PATH, ask_platform_events, warnings_in

AT = "2026-11-29T01:19:17Z"


def event(name: str, reason: str, message: str, *, severity: str = "WARNING", **known: Any) -> dict[str, Any]:
    """An event as the head has sent it."""
    about = {
        "source": {"platform": "KUBERNETES", "component": "default-scheduler", "metadata": {"namespace": "ml"}},
        "objectKind": "Pod",
        "objectName": name,
        "message": message,
        "reason": reason,
        "customFields": {"count": "7"},
    }
    head = {"eventId": "dTE=", "sourceType": "CLUSTER_LIFECYCLE", "eventType": "PLATFORM_EVENT", "timestamp": AT}
    return {**head, "severity": severity, "message": message, "platformEvent": about, "sessionName": "", **known}


def warnings(*events: dict[str, Any]) -> tuple[PlatformEvent, ...]:
    reply = {"result": True, "msg": "Retrieved platform events", "data": {"events": events}}
    return warnings_in(json.dumps(reply).encode())


LACKING = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def test_a_pod_that_cannot_be_placed_is_a_warning() -> None:
    found = warnings(event("gpu-x7k2p", "FailedScheduling", LACKING))

    pod = PlatformEvent(
        kind="Pod", name="gpu-x7k2p", reason="FailedScheduling", message=LACKING, at=1795915157.0, count=7
    )
    assert found == (pod,)


def test_a_pod_that_has_started_since_is_none() -> None:
    newest = event("gpu-x7k2p", "Started", "Started container ray-worker", severity="INFO")

    assert warnings(newest, event("gpu-x7k2p", "FailedScheduling", LACKING)) == ()


@pytest.mark.parametrize("known", [{"timestamp": None}, {"timestamp": "1970-01-01T00:00:00Z"}])
def test_a_warning_without_a_time_has_none(known: dict[str, Any]) -> None:
    (found,) = warnings(event("gpu-x7k2p", "FailedScheduling", LACKING, **known))

    assert found.at is None


def test_many_long_warnings_are_bounded() -> None:
    found = warnings(*(event(f"gpu-{number}", "FailedScheduling", "x" * 5_000) for number in range(1_000)))

    assert len(found) == MAX_EVENTS
    assert all(len(one.message) <= 300 for one in found)


def test_secrets_in_a_message_are_masked() -> None:
    (found,) = warnings(event("gpu", "Failed", "pull https://me:hunter2@registry failed"))

    assert "hunter2" not in found.message


class Handler(BaseHTTPRequestHandler):
    """A dashboard head of session ``s1`` with one pod that cannot be placed; without ``events`` it collects none."""

    events = True

    def do_GET(self) -> None:
        """Answer."""
        replies: dict[str, Any] = {VERSION: {"session_name": "s1"}}
        if self.events:
            replies[PATH] = {"data": {"events": [event("gpu-x7k2p", "FailedScheduling", LACKING)]}}
        body = json.dumps(replies.get(self.path)).encode()
        self.send_response(200 if self.path in replies else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.mark.parametrize(("session", "has_events", "count"), [("s1", True, 1), ("s1", False, 0), ("s2", True, 0)])
def test_only_a_head_of_the_cluster_that_collects_events_has_them(
    monkeypatch: pytest.MonkeyPatch, session: str, has_events: bool, count: int
) -> None:
    monkeypatch.setattr(Handler, "events", has_events)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        head = dashboard_head._Head(urlsplit(f"http://127.0.0.1:{server.server_port}"), session)
        monkeypatch.setattr(dashboard_head, "_find", lambda *_: head)
        cluster: Any = SimpleNamespace(metadata=())

        found = ask_platform_events(cluster, 5.0)

        server.shutdown()
    assert len(found) == count


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": {"events": [{"severity": 3}]}}'])
def test_a_reply_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        warnings_in(body)
