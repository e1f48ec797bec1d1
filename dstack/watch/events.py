"""Tells what happens in a watch: one line for each event."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from datetime import datetime, timezone

from dstack.snapshot_file import to_json
from dstack.visible import visible

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
MOST_TEXT = 500
"""So many characters of an event's text are told."""
WITHIN_S = 2.0
"""Who reads has so long to make room for an event."""
_ATOMIC = 4096
"""A pipe that can be written to takes so many bytes at once, pipe(7)."""


class Events:
    """A line each on standard error, and where ``as_json`` a line of JSON on standard output.

    Nothing is raised, and nobody is waited for in earnest, when they are not read any more: the watch goes on for its
    files, its command and its metrics. What finds no room in time is left out.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._cut: set[int] = set()  # where a line was written in part

    def tell(self, event: str, text: str, *, within_s: float = WITHIN_S, **fields: object) -> None:
        """An event by its name, in words, and for JSON with its fields."""
        now = time.time()
        shown = visible(text)
        shown = shown if len(shown) <= MOST_TEXT else f"{shown[:MOST_TEXT]}..."
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}  {event:8}  {shown}\n"
        self._write(STANDARD_ERROR, line.encode(errors="backslashreplace"), within_s)
        if self._as_json:
            at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
            document = to_json({"event": event, "at": at, "text": text, **fields})
            self._write(STANDARD_OUTPUT, document + b"\n", within_s)

    def _write(self, stream: int, line: bytes, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        if not self._lock.acquire(timeout=within_s):
            return
        try:
            line = b"\n" * (stream in self._cut) + line
            left = _unwritten(stream, line, deadline)
            if not left:
                self._cut.discard(stream)
            elif len(left) < len(line):
                self._cut.add(stream)
        finally:
            self._lock.release()


def _unwritten(stream: int, data: bytes, deadline: float) -> bytes:
    """What of the data could not be written by then, piece by piece so that no write blocks."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = data[os.write(stream, data[:_ATOMIC]) :]
    return data
