"""Calls of threads that ran during every reading and were in the same call each time.

Ray wakes a thread that waits for refs every second. On a host so busy that each reading takes a second, such a thread
is never read at rest. Neither what it waits for nor its progress is proven.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstack.probes.node.threads import AnyThread
from dstack.probes.node.wire import CallData

REF_CALLS = ("ray.get", "ray.wait", "generator")
"""The calls in which Ray wakes a thread though no value has come. In any other, a woken thread proceeds."""
WOKEN_EVERY_S = 1.0
"""Seen on Ray 2.46 and 2.60."""
UNPROVEN = "its thread ran during every reading, as on an overloaded host"


def unproven_call(readings: Sequence[tuple[AnyThread, CallData | None]]) -> CallData | None:
    """The call, without its dependencies, if all readings of a thread show the same one at the same lines.

    A thread that makes progress is soon in a call for other refs.
    """
    lines = [_lines(thread) for thread, _ in readings]
    calls = [call for _, call in readings]
    first = calls[0] if calls else None
    if first is None or not _is_woken(first) or any(one != first for one in calls) or any(x != lines[0] for x in lines):
        return None
    return unread(first)


def unread(call: CallData | None) -> CallData | None:
    """The call without its dependencies."""
    return {"kind": call["kind"], "frame": call["frame"], "unread": UNPROVEN} if call else None


def _is_woken(call: CallData) -> bool:
    """Whether only Ray wakes the thread; one with a short timeout wakes by itself, and calls again."""
    timeout_s = call.get("timeout_s")
    return call["kind"] in REF_CALLS and "unread" not in call and (timeout_s is None or timeout_s > WOKEN_EVERY_S)


def _lines(thread: AnyThread) -> list[tuple[str, int]]:
    return [(frame.position.file, frame.position.line) for frame in thread.frames]
