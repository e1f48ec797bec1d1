"""Prints the events of a watch, one line each."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from datetime import datetime, timezone

from dstack.document_file import to_json
from dstack.visible import visible

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
MAX_TEXT = 500
"""The most characters of an event's text that are printed."""
WITHIN_S = 2.0
"""How long a full pipe may delay an event before the event is dropped."""
_ATOMIC = 4096
"""The bytes that a writable pipe accepts at once, pipe(7)."""


class Events:
    """Prints a line for each event to standard error, and with ``as_json`` a line of JSON to standard output.

    If a stream is closed or not read any more, nothing is raised and no write blocks for long: the watch continues for
    its files, its command and its metrics. An event that cannot be written in time is dropped.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()
        self._cut: set[int] = set()  # the streams in which the last line is incomplete

    def emit(self, event: str, text: str, *, within_s: float = WITHIN_S, **fields: object) -> None:
        """Prints an event: its name and its text, in JSON also its fields."""
        now = time.time()
        shown = visible(text)
        shown = shown if len(shown) <= MAX_TEXT else f"{shown[:MAX_TEXT]}..."
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
    """Writes in pieces so that no write blocks; returns the data that could not be written by the deadline."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    with contextlib.suppress(OSError):
        while data and poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            data = data[os.write(stream, data[:_ATOMIC]) :]
    return data
