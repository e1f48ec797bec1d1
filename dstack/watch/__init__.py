"""Watches a cluster until it is told to stop: cheap looks, a full one when something does not move, and who is told."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from types import FrameType

from dstack.ending import Tidying
from dstack.watch.settings import Settings

__all__ = ["Settings", "Terminated", "watch"]


class Terminated(BaseException):
    """SIGTERM has come: the watch is to end, and has."""


def watch(settings: Settings) -> None:
    """Watches on and on; whatever is under way when it ends is ended with it.

    Raises :class:`Terminated` on SIGTERM, KeyboardInterrupt on Ctrl-C, and :class:`dstack.DstackError` where it cannot
    begin. What waits for others' answers does so in another thread, so that a signal is heeded at once.
    """
    signal.signal(signal.SIGTERM, _end)
    from dstack.probes.connection.background import begin
    from dstack.watch.loop import Watch  # loads Ray, which takes a moment

    with Tidying():
        signal.signal(signal.SIGTERM, _terminate)
        one = Watch(settings)
        try:
            running = begin(one.run)
            _await(running)
            running.result()
        finally:
            one.stop()


def _await(running: Future[None]) -> None:
    """Waits for its end or a signal; a lock would miss the signal that comes just before it is waited for (3.11)."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    running.add_done_callback(lambda _: os.write(writer, b"."))
    while not running.done():
        os.read(reader, 1)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
