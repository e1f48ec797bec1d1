"""Warnings of Kubernetes, by a reply of the dashboard head of Ray 2.60 that watched a stand-in for its API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dstack.model.snapshot import PlatformEvent
from dstack.probes.ray_state.platform_events import MAX_EVENTS, warnings_in

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


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": {"events": [{"severity": 3}]}}'])
def test_a_reply_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        warnings_in(body)
