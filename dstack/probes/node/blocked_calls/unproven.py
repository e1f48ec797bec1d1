"""Calls of threads that ran during every reading and were in the same call each time.

Ray wakes a thread that waits for refs every second. On a host so busy that each reading takes a second, such a thread
is never read while it does not run. Neither its dependencies nor its progress is proven.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstack.call_sites import kind_of
from dstack.observed_calls import REF_CALLS, Call, Unreadable
from dstack.probes.node.threads import AnyThread

WOKEN_EVERY_S = 1.0
"""How often Ray wakes a thread that waits for refs though no value has come; seen on Ray 2.46 and 2.60."""
UNPROVEN = "its thread ran during every reading, as on an overloaded host"


def unproven_call(readings: Sequence[tuple[AnyThread, Call | None]]) -> Call | None:
    """The call, without its dependencies, if all readings of a thread show the same one at the same lines.

    A thread that makes progress is soon in a call for other refs.
    """
    lines = [_lines(thread) for thread, _ in readings]
    calls = [call for _, call in readings]
    first = calls[0] if calls else None
    if first is None or not _is_woken(first) or any(one != first for one in calls) or any(x != lines[0] for x in lines):
        return None
    return unread(first)


def unread(call: Call | None) -> Call | None:
    """The call without its dependencies."""
    return Call(site=call.site, frame=call.frame, need=Unreadable(reason=UNPROVEN)) if call else None


def _is_woken(call: Call) -> bool:
    """Whether only Ray wakes the thread; one with a short timeout wakes by itself, and calls again."""
    is_long = call.timeout_s is None or call.timeout_s > WOKEN_EVERY_S
    return kind_of(call) in REF_CALLS and not isinstance(call.need, Unreadable) and is_long


def _lines(thread: AnyThread) -> list[tuple[str, int]]:
    return [(frame.position.file, frame.position.line) for frame in thread.frames]
