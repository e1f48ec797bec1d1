"""Daemon threads for calls that may hang; the exit of the process does not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T]) -> Future[T]:
    """Runs ``call`` in a daemon thread; Python waits for an executor's threads even on Ctrl-C and at exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dstack", daemon=True).start()
    return future


def within(future: Future[T], seconds: float) -> T | None:
    """The result of a call, or None if it times out; the call is not cancelled. Raises its exception."""
    try:
        return future.result(max(0.0, seconds))
    except NotInTime:
        if future.done():
            raise
        return None
