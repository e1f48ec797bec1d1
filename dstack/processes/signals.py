"""How signals end the command: with one line of text and an exit code of 128 plus the signal's number.

By default a signal ends the process at once, without an exception. An exception could be lost in code that is being
loaded, or become another one: gRPC drops it, and Cython treats it as its own failure. This module imports almost
nothing, so that it is active before anything slow is loaded.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

TEXTS = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated."}
if hasattr(signal, "SIGHUP"):  # not on Windows
    TEXTS[signal.SIGHUP] = "The terminal was closed."


class Ended(KeyboardInterrupt):
    """A signal ends the command; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CleanUp:
    """A block whose ``finally`` clauses must run when a signal ends the command.

    A signal raises :class:`Ended` there. A second one ends the process at once.
    """

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, _raise) for number in ending_signals()}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def end_on_signals() -> None:
    """From now on, end the process at once on a signal, except on those that were ignored when it started."""
    for number in ending_signals():
        signal.signal(number, _end)


def end(number: int) -> NoReturn:
    """Ends the process as that signal does. Waits neither for threads nor for a terminal that accepts no output."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{TEXTS[signal.Signals(number)]}\n".encode())
    except (OSError, ValueError):  # standard error is closed
        pass
    os._exit(128 + number)


def ending_signals() -> list[signal.Signals]:
    """The signals that end the command; without those that were ignored when it started."""
    return [number for number in TEXTS if signal.getsignal(number) is not signal.SIG_IGN]


def _end(number: int, frame: FrameType | None) -> None:
    end(number)


def _raise(number: int, frame: FrameType | None) -> None:
    end_on_signals()
    raise Ended(number)
