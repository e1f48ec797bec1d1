"""Watches a cluster until it is stopped: polls it, takes snapshots if something makes no progress, and alerts."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from types import FrameType

from dstack.processes.signals import CleanUp
from dstack.watch.settings import WatchSettings

__all__ = ["Terminated", "WatchSettings", "watch"]


class Terminated(BaseException):
    """SIGTERM has ended the watch."""


def watch(settings: WatchSettings) -> None:
    """Watches a cluster until a signal ends it, together with its current work.

    Raises :class:`Terminated` on SIGTERM, KeyboardInterrupt on Ctrl-C, and :class:`dstack.DstackError` if it cannot
    connect at first. All waiting for replies is done in another thread, so that signals take effect at once.
    """
    signal.signal(signal.SIGTERM, _end)
    from dstack.probes.connection.background import begin
    from dstack.watch.loop import ClusterWatch  # loads Ray, which takes a moment

    with CleanUp():
        signal.signal(signal.SIGTERM, _terminate)
        one = ClusterWatch(settings)
        try:
            running = begin(one.run)
            _await(running)
            running.result()
        finally:
            one.stop()


def _await(running: Future[None]) -> None:
    """Waits for its end or a signal; a lock would miss a signal that comes just before the wait (CPython 3.11)."""
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
