"""Steps through the snapshots of a run and plays them; those that are not in memory are read in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.message import Message
from textual.timer import Timer
from textual.worker import get_current_worker

from dstack.errors import DstackError
from dstack.tui.snapshot_sources import NumberedSnapshot
from dstack.tui.views.base import Host

RATES: tuple[float, ...] = (0.5, 1, 2, 4)
"""Snapshots per second, of which the command palette offers each."""
DRAWING_S = 0.3
"""So long after a step, nothing is read that is not needed now, as that would slow down the drawing."""
POLL_S = 0.01
REPLAY_KEYS = (
    Binding("P", "play", "Play", id="app.play", tooltip="Show one snapshot after the other, or pause"),
    *(
        Binding(key, action, label, key_display=sign, show=False, id=f"app.snapshot-{word}", tooltip=tooltip)
        for key, sign, action, word, label, tooltip in (
            ("left_square_bracket", "[", "step(-1)", "before", "Previous snapshot", "Show the snapshot before"),
            ("right_square_bracket", "]", "step(1)", "after", "Next snapshot", "Show the snapshot after"),
            ("left_curly_bracket", "{", "go_to_end(-1)", "first", "First snapshot", "Show the first snapshot"),
            ("right_curly_bracket", "}", "go_to_end(1)", "last", "Last snapshot", "Show the last snapshot"),
        )
    ),
)
"""The keys that every view has, for actions of the application."""


@dataclass
class SnapshotRead(Message):
    """A snapshot is in memory, or its ``trouble`` says why not."""

    snapshot: NumberedSnapshot


@dataclass
class SnapshotSummarised(Message):
    """The summary of a snapshot is known, or its ``trouble``."""

    snapshot: NumberedSnapshot


class Replay:
    """The position among the snapshots of a host. All but what reads runs in the application's thread."""

    def __init__(self, app: App[Any], host: Host, is_prepared: Callable[[NumberedSnapshot], bool]) -> None:
        self._app = app
        self._host = host
        self._is_prepared = is_prepared
        self._wanted: NumberedSnapshot | None = None
        self._direction = -1
        self._is_reading = False
        self._rate = 1.0
        self._timer: Timer | None = None
        self._shown_at = 0.0

    @property
    def is_playing(self) -> bool:
        """Whether the next snapshot is shown by itself."""
        return self._timer is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the snapshot to be shown is still read."""
        return self._wanted is not None

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is read or drawn, so that all other reading has to wait."""
        return self._is_reading or time.monotonic() - self._shown_at < DRAWING_S

    def go(self, snapshot: NumberedSnapshot, direction: int = -1) -> None:
        """Show a snapshot as soon as it is read; if that fails, the next one in this direction."""
        self._wanted, self._direction = snapshot, direction
        if not self._is_reading:
            self._proceed()

    def step(self, direction: int) -> bool:
        """Show the next snapshot in a direction; false if there is none."""
        at = self._wanted or self._host.shown
        snapshot = self._next(at, direction) if at else None
        if snapshot is not None:
            self.go(snapshot, direction)
        return snapshot is not None

    def go_to_end(self, direction: int) -> None:
        """Show the first or the last snapshot that can be read."""
        readable = [one for one in self._host.snapshots if not one.trouble]
        if readable:
            self.go(readable[-1 if direction > 0 else 0], -direction)

    def play(self) -> None:
        """Show one snapshot after the other up to the last; from the first one on if the last is shown."""
        self._timer = self._app.set_interval(1 / self._rate, self._advance)
        if self._host.shown and self._next(self._host.shown, 1) is None:
            self.go_to_end(-1)

    def pause(self) -> None:
        """Stop at the snapshot that is shown."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def play_at(self, rate: float) -> None:
        """Play with so many snapshots per second."""
        self.pause()
        self._rate = rate
        self.play()

    def accept(self, snapshot: NumberedSnapshot) -> None:
        """Continue after the thread has read a snapshot, or has failed to."""
        self._is_reading = False
        if snapshot is self._wanted and snapshot.trouble:
            self._wanted = self._next(snapshot, self._direction) or self._next(snapshot, -self._direction)
        if self._wanted is not None:
            self._proceed()

    def _advance(self) -> None:
        if self._wanted is None and not self.step(1):
            self.pause()
            self._host.show_status()

    def _proceed(self) -> None:
        """Show the wanted snapshot, and read the one after it ahead; or read the wanted one first."""
        wanted = self._wanted
        if wanted is None:
            return
        if not self._is_prepared(wanted):
            self._start(wanted)
            return
        self._wanted = None
        if self._next(wanted, 1) is None:
            self.pause()
        self._shown_at = time.monotonic()
        self._host.show_snapshot(wanted)
        self._app.set_timer(DRAWING_S, self._read_ahead)

    def _read_ahead(self) -> None:
        """Read the snapshot after the shown one, in the direction of the last step."""
        shown = self._host.shown
        ahead = self._next(shown, self._direction) if shown and not self._is_reading else None
        if ahead is not None and not self._is_prepared(ahead):
            self._start(ahead)

    def _start(self, snapshot: NumberedSnapshot) -> None:
        self._is_reading = True
        self._app.run_worker(partial(self._read, snapshot), thread=True, exit_on_error=False)

    def _read(self, snapshot: NumberedSnapshot) -> None:
        """Read and analyse a snapshot. Runs in a thread, so it touches no widget."""
        with suppress(DstackError):  # its trouble says why
            snapshot.prepare()
        self._app.post_message(SnapshotRead(snapshot))

    def summarise_all(self) -> None:
        """Read every snapshot once, the newest first, for its summary; in a thread that ends with the application."""
        snapshots = tuple(reversed(self._host.snapshots))

        def read() -> None:
            worker = get_current_worker()
            for snapshot in snapshots:
                while self.is_busy and not worker.is_cancelled:
                    time.sleep(POLL_S)
                if worker.is_cancelled:
                    return
                if snapshot.summary is None and not snapshot.trouble:
                    with suppress(DstackError):  # its trouble says why
                        snapshot.prepare()
                self._app.post_message(SnapshotSummarised(snapshot))

        self._app.run_worker(read, thread=True, exit_on_error=False)

    def _next(self, at: NumberedSnapshot, direction: int) -> NumberedSnapshot | None:
        """The nearest snapshot in a direction that can be read, as far as that is known."""
        number = at.number
        found = [one for one in self._host.snapshots if not one.trouble and (one.number - number) * direction > 0]
        return (found[0] if direction > 0 else found[-1]) if found else None
