"""Watches a cluster until it is told to stop: cheap looks, a full one when something does not move, and who is told."""

from __future__ import annotations

import signal
from concurrent.futures import wait
from types import FrameType

from dstack.watch.settings import Settings

__all__ = ["Settings", "Terminated", "watch"]

HEEDED_S = 0.2
"""A signal that comes just before a wait begins is heeded only when that wait has ended (seen on CPython 3.11)."""


class Terminated(BaseException):
    """SIGTERM has come: the watch is to end, and has."""


def watch(settings: Settings) -> None:
    """Watches on and on; whatever is under way when it ends is ended with it.

    Raises :class:`Terminated` on SIGTERM, KeyboardInterrupt on Ctrl-C, and :class:`dstack.DstackError` where it cannot
    begin. What waits for others' answers does so in another thread, so that a signal is heeded at once.
    """
    signal.signal(signal.SIGTERM, _terminate)
    from dstack.probes.background import begin
    from dstack.watch.loop import Watch  # loads Ray, which takes a moment

    one = Watch(settings)
    try:
        running = begin(one.run)
        while not running.done():
            wait([running], timeout=HEEDED_S)
        running.result()
    finally:
        one.stop()


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
