"""Threads that moved whenever they were read, and were in the same call each time.

Ray wakes who waits for refs every second; on a host so busy that every reading takes as long, such a thread is never
proven still. What it waits for is then not known for certain, and neither is that it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dstack.probes.node.pyspy.parser import RawThread

Plain = dict[str, Any]

KINDS = ("ray.get", "ray.wait", "generator")
"""The calls in which Ray wakes a thread though nothing has come. Nobody leaves any other without going on."""
WOKEN_EVERY_S = 1.0
"""Seen on Ray 2.46 and 2.60."""
UNPROVEN = "its thread was woken during every reading, as on a host that is very busy"


class Restless:
    """The unproven readings of one look at one process."""

    def __init__(self) -> None:
        self._readings: list[dict[int, tuple[list[tuple[str, int]], Plain]]] = []

    def note(self, threads: Iterable[RawThread], calls: dict[int, Plain]) -> None:
        """Takes in a reading: the threads, and by their OS ids what they seemed to wait for."""
        found = ((thread, calls.get(thread["os_thread_id"])) for thread in threads)
        self._readings.append(
            {thread["os_thread_id"]: (_lines(thread), call) for thread, call in found if call and _is_woken(call)}
        )

    def calls(self, threads: Iterable[RawThread], still: set[int]) -> dict[int, Plain]:
        """The calls, by OS ids, of those that seemed to be in the same one in all readings, and are at its line."""
        return {
            thread["os_thread_id"]: {"kind": call["kind"], "frame": call["frame"], "unread": UNPROVEN}
            for thread in threads
            if thread["os_thread_id"] not in still and (call := self._same_call(thread))
        }

    def _same_call(self, thread: RawThread) -> Plain | None:
        """Who goes on is soon in a call for other refs."""
        found = [reading.get(thread["os_thread_id"]) for reading in self._readings]
        first = found[0] if found else None
        return first[1] if first and first[0] == _lines(thread) and all(one == first for one in found) else None


def _is_woken(call: Plain) -> bool:
    """Whether it takes Ray to wake it: one with a short timeout moves by itself, and is there again."""
    timeout_s = call.get("timeout_s")
    return call["kind"] in KINDS and "unread" not in call and (timeout_s is None or timeout_s > WOKEN_EVERY_S)


def _lines(thread: RawThread) -> list[tuple[str, int]]:
    return [(frame["filename"], frame["line"]) for frame in thread["frames"]]
