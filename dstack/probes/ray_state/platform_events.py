"""Events of the platform that the dashboard head collects, such as of pods that Kubernetes cannot place.

Ray 2.60 collects them in memory, the newest 1,000, if the head has ``RAY_DASHBOARD_INGEST_PLATFORM_EVENTS=1``,
``ray[default]`` and the client of Kubernetes, and its service account may list and watch pods and events.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from dstack.model.snapshot import PlatformEvent
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.rpc import CallFailure
from dstack.probes.node.redaction import masked_local
from dstack.probes.ray_state.dashboard_head import HttpCall, ask_dashboard_head

PATH = "/api/v0/platform_events"
MAX_EVENTS, MAX_TEXT = 50, 300
"""At most so many events are kept, and so much of their texts."""
WARNING = "WARNING"


class _Object(msgspec.Struct, rename="camel"):
    object_kind: str = ""
    object_name: str = ""
    reason: str = ""
    message: str = ""
    custom_fields: dict[str, str] = {}


class _Event(msgspec.Struct, rename="camel"):
    platform_event: _Object
    timestamp: datetime | None = None
    severity: str = ""


class _Events(msgspec.Struct):
    events: list[_Event] = []


class _Reply(msgspec.Struct):
    data: _Events


def ask_platform_events(cluster: Cluster, timeout_s: float) -> tuple[PlatformEvent, ...]:
    """The newest event of each object of which it is a warning; none where the head does not collect them."""
    replies = ask_dashboard_head(cluster, [HttpCall("GET", PATH, warnings_in)], timeout_s)
    if isinstance(replies, CallFailure) or isinstance(replies[0], CallFailure):
        return ()
    found: tuple[PlatformEvent, ...] = replies[0]
    return found


def warnings_in(body: bytes) -> tuple[PlatformEvent, ...]:
    """The events of a reply, which has the newest first. Raises ``ValueError`` if it is not understood."""
    newest: dict[tuple[str, str], _Event] = {}
    for event in msgspec.json.decode(body, type=_Reply).data.events:
        newest.setdefault((event.platform_event.object_kind, event.platform_event.object_name), event)
    return tuple(_event(one) for one in newest.values() if one.severity == WARNING)[:MAX_EVENTS]


def _event(event: _Event) -> PlatformEvent:
    about = event.platform_event
    count = about.custom_fields.get("count", "1")
    return PlatformEvent(
        kind=about.object_kind,
        name=about.object_name,
        reason=about.reason,
        message=masked_local("", about.message[:MAX_TEXT]),
        at=(event.timestamp.timestamp() or None) if event.timestamp else None,
        count=int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 1,
    )
