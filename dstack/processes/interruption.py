"""Interrupts the main thread in a blocked call as Ctrl-C does, without affecting any other code.

Every blocked call of Python gives way to a signal. Ray checks for signals about once a second while it waits, and
passes on only KeyboardInterrupt: it loses any other exception of a signal handler (seen on 2.46 and 2.60). Other
threads cannot be interrupted: an exception that is set from outside waits for the end of the blocked call.

If SIGINT is ignored from the start, as under ``nohup`` and in the background of a script, or has the default action of
the system, dstack installs its own handler meanwhile. That raises KeyboardInterrupt only for dstack's signal: any other
SIGINT has the effect that it had before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType

_DELIVERY_S = 0.01
"""A signal is delivered before a system call ends, so at the latest during a sleep of this time."""


class InterruptibleCode:
    """A stretch of code in the main thread that other threads may interrupt until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._replaced: signal.Handlers | None = None
        self.is_interrupted = False

    def begin(self) -> None:
        """Allows interruptions from here on, if this is the main thread; :meth:`end` must follow."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or before is signal.SIG_DFL:
            self._replaced = signal.Handlers(before)
            signal.signal(signal.SIGINT, _handle)
        _begun.append(self)

    def interrupt(self) -> bool:
        """Raises KeyboardInterrupt in the main thread through its SIGINT handler; false if the code is over."""
        with self._lock:
            if self._is_over or not callable(signal.getsignal(signal.SIGINT)):
                return False
            self.is_interrupted = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            return True

    def end(self) -> None:
        """Forbids interruptions, and waits for the delivery of one that was sent. Called by the main thread."""
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
"""The stretches that have begun and not ended, the outer ones first; only the main thread uses this list."""


def _handle(number: int, frame: FrameType | None) -> None:
    """Replaces the two dispositions that are not Python handlers."""
    if any(one.is_interrupted for one in _begun):
        raise KeyboardInterrupt
    if _begun and _begun[0]._replaced is signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def is_interruptible() -> bool:
    """Whether the SIGINT that dstack sends raises KeyboardInterrupt here, and does nothing else."""
    return signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _handle)
