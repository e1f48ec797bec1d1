"""Breaks the main thread out of a call it is blocked in as Ctrl-C would, and keeps that from hitting anything else.

A signal is what every blocked call of Python gives way to. Ray looks for signals while it waits, about once a second,
and passes on a KeyboardInterrupt only: any other exception of a signal handler is lost (seen on 2.46 and 2.60). For
other threads there is nothing of the kind: an exception set from outside waits for the blocked call to end.

Where SIGINT is ignored from the start, as under ``nohup`` and in the background of a script, or has the system's own
effect, dstack's handler takes its place meanwhile. That raises KeyboardInterrupt for dstack's signal only: any other
SIGINT has the effect that it had before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType

_DELIVERY_S = 0.01
"""A signal that was sent is delivered before a call to the system ends, so at the latest during this one."""


class InterruptibleCode:
    """A stretch of code that runs in the main thread, and that others may break off until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._replaced: signal.Handlers | None = None
        self.is_interrupted = False

    def begin(self) -> None:
        """From here on the code may be broken off, if this is the main thread; :meth:`end` has to follow."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or before is signal.SIG_DFL:
            self._replaced = signal.Handlers(before)
            signal.signal(signal.SIGINT, _handle)
        _begun.append(self)

    def interrupt(self) -> bool:
        """Raises KeyboardInterrupt in the main thread, by its SIGINT handler; false where it cannot any more."""
        with self._lock:
            if self._is_over or not callable(signal.getsignal(signal.SIGINT)):
                return False
            self.is_interrupted = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            return True

    def end(self) -> None:
        """Called by the main thread: nothing strikes from here on, and what was sent has arrived."""
        while not self._is_over:
            try:
                with self._lock:
                    self._is_over = True
            except KeyboardInterrupt:
                if not self.is_interrupted:
                    raise
        if self.is_interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(_DELIVERY_S)
        if self in _begun:
            _begun.remove(self)
        if self._replaced is not None and signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, self._replaced)
        self._replaced = None


_begun: list[InterruptibleCode] = []
"""Those that have begun and not ended, the outer ones first; only the main thread uses it."""


def _handle(number: int, frame: FrameType | None) -> None:
    """Takes the place of the two dispositions that are no handlers of Python's."""
    if any(one.is_interrupted for one in _begun):
        raise KeyboardInterrupt
    if _begun and _begun[0]._replaced is signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def is_interruptible() -> bool:
    """Whether SIGINT raises KeyboardInterrupt and nothing else here, at least the SIGINT that dstack sends."""
    return signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _handle)
