"""Tells what happens in a watch: one line for each event."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from datetime import datetime, timezone

from dstack.report.safe_text import visible
from dstack.snapshot_file import to_json

MOST_TEXT = 500
"""So many characters of an event's text are told."""


class Events:
    """A line each on standard error, and where ``as_json`` a line of JSON on standard output.

    Nothing is raised when nobody reads them any more: the watch goes on for its files, its command and its metrics.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._lock = threading.Lock()

    def tell(self, event: str, text: str, **fields: object) -> None:
        """An event by its name, in words, and for JSON with its fields."""
        now = time.time()
        shown = visible(text)
        shown = shown if len(shown) <= MOST_TEXT else f"{shown[:MOST_TEXT]}..."
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}  {event:8}  {shown}\n"
        with self._lock, contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()
        if self._as_json:
            at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds")
            with self._lock, contextlib.suppress(OSError, ValueError):
                sys.stdout.buffer.write(to_json({"event": event, "at": at, "text": text, **fields}) + b"\n")
                sys.stdout.buffer.flush()
