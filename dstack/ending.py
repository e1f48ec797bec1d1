"""How the command ends on a signal: in one line, with an exit code of its own, whatever it is in the middle of.

Where there is nothing to tidy up, a signal ends the process where it stands. An exception would be lost in what loads
just then, or come out as another: gRPC drops it, Cython takes it for a failure of its own. Imports next to nothing, so
that it is there before everything that takes time.
"""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

WORDS = {signal.SIGINT: "Interrupted.", signal.SIGTERM: "Terminated.", signal.SIGHUP: "The terminal was closed."}


class Ended(KeyboardInterrupt):
    """A signal has come that ends the command; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Tidying:
    """A stretch of code that leaves something behind unless its ``finally`` clauses run.

    A signal is raised there as :class:`Ended`. A second one ends the process where it stands.
    """

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, _raise) for number in heeded()}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def heed_signals() -> None:
    """From now on a signal ends the process where it stands; one that the starter has it ignore is ignored."""
    for number in heeded():
        signal.signal(number, _end)


def end(number: int) -> NoReturn:
    """Ends the process as that signal does, without a regard for threads, nor for a terminal that takes nothing."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{WORDS[signal.Signals(number)]}\n".encode())
    except (OSError, ValueError):  # standard error is closed
        pass
    os._exit(128 + number)


def heeded() -> list[signal.Signals]:
    """The signals that end the command: not those that its starter has it ignore."""
    return [number for number in WORDS if signal.getsignal(number) is not signal.SIG_IGN]


def _end(number: int, frame: FrameType | None) -> None:
    end(number)


def _raise(number: int, frame: FrameType | None) -> None:
    heed_signals()
    raise Ended(number)
