"""Readings that may hang, in daemon threads: a sample takes what is there in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class LateReading(Generic[T]):
    """One reading at a time. While a reading hangs, no other one begins, and there is no result."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._results: list[T | None] = []
        self._is_overdue = False

    def begin(self, read: Callable[[], T | None]) -> None:
        """Begin a reading, unless the previous one still runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._is_overdue, results = False, []

        def run() -> None:
            try:
                results.append(read())
            except Exception:
                results.append(None)

        self._results = results
        self._thread = threading.Thread(target=run, name="dstack", daemon=True)
        self._thread.start()

    def result(self, within_s: float) -> T | None:
        """The result of the reading; None if it failed or takes longer. A reading that hangs is awaited only once."""
        if self._thread is None:
            return None
        self._thread.join(0.0 if self._is_overdue else max(0.0, within_s))
        self._is_overdue = self._thread.is_alive()
        return None if self._is_overdue or not self._results else self._results[0]
