"""Threads for calls that may hang: nobody waits for their end who does not ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T]) -> Future[T]:
    """What ``call`` gives, from a daemon thread; an executor's would be waited for even on Ctrl-C and at exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="dstack", daemon=True).start()
    return future


def within(future: Future[T], seconds: float) -> T | None:
    """What a call gives if it does so in time, else None; the call is left to itself. Raises what it has raised."""
    try:
        return future.result(max(0.0, seconds))
    except NotInTime:
        if future.done():
            raise
        return None
