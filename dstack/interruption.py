"""Breaks the main thread out of a call it is blocked in as Ctrl-C would, and keeps that from hitting anything else.

A signal is what every blocked call of Python gives way to. Ray looks for signals while it waits, about once a second,
and passes on a KeyboardInterrupt only: any other exception of a signal handler is lost (seen on 2.46 and 2.60). For
other threads there is nothing of the kind: an exception set from outside waits for the blocked call to end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time

_DELIVERY_S = 0.01
"""A signal that was sent is delivered before a call to the system ends, so at the latest during this one."""


class Interruption:
    """A stretch of code that runs in the main thread, and that others may break off until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self.is_struck = False

    def strike(self) -> bool:
        """Raises KeyboardInterrupt in the main thread, by its SIGINT handler; false where it cannot any more."""
        with self._lock:
            if self._is_over or not callable(signal.getsignal(signal.SIGINT)):
                return False
            self.is_struck = True
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
                if not self.is_struck:
                    raise
        if self.is_struck:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(_DELIVERY_S)


def is_plain() -> bool:
    """Whether SIGINT does in this process what it does in any: raise KeyboardInterrupt, and nothing else."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
