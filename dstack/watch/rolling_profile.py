"""The rolling profile of a watch: a file for each ten minutes, the newest of which are kept.

Each is made by a process of its own, as by ``dstack profile``. A profile that fails is begun anew, after pauses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import chain, repeat
from pathlib import Path

from dstack.collecting.recorder import Recorder, new_profile
from dstack.errors import DstackError, SnapshotFileError, as_dstack_error
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import Profile, ProfileOptions
from dstack.probes.connection.background import begin, within
from dstack.watch.events import Events
from dstack.watch.snapshot_saver import DatedFiles
from dstack.words import duration

MAX_PAUSE_S = 60.0
"""What fails is tried again after 1, 2, 4 ... seconds, up to this many."""
PERIOD_S = 600.0
"""The time in one file."""
KEPT = 12
"""The number of files that are kept: two hours."""
STEADY_S = 60.0
"""A profile that has lasted so long has recovered from failures."""
TURN_S = 0.5
"""How often a cluster that was lost is asked for."""
LAST_ROUND_S, KILLED_S = 1.0, 0.5
"""How long the end of the watch waits for the last sample, and then for what was sampled before."""


def pauses() -> Iterator[float]:
    """1, 2, 4 ... seconds, up to :data:`MAX_PAUSE_S`."""
    return chain((2.0**number for number in range(6)), repeat(MAX_PAUSE_S))


class RollingProfile:
    """Profiles the cluster at ``address()`` in a thread, while there is one.

    The files are ``profile-YYYYmmdd-HHMMSS.json.gz``, named by their begin in UTC. One in which no driver ran is not
    written. Of several in a row of less than a minute, only the first and the last one stay, so that many failures
    leave older files alone. No failure ends it: the first one of several is an event, and so is their end. Raises
    :class:`dstack.SnapshotFileError` if the directory is not writable.
    """

    def __init__(
        self, directory: str | os.PathLike[str], rate_hz: float, address: Callable[[], str | None], events: Events
    ) -> None:
        self._files = DatedFiles(directory, "profile", KEPT)
        self._rate_hz = rate_hz
        self._address = address
        self._events = events
        self._pauses = pauses()
        self._failed_at: float | None = None
        self._lock = threading.Lock()
        self._recorder: Recorder[Profile] | None = None
        self._path: Path | None = None
        self._replaced: Path | None = None
        self._was_short = False
        self._is_interrupted = False
        self._is_wanted = False
        self._over = threading.Event()
        self._running: Future[None] | None = None
        self.has_saved = False

    def start(self) -> None:
        """Begin to profile."""
        self._running = begin(self._run)

    def save_soon(self) -> None:
        """Write what was sampled of the current file until now, in about a second; another thread calls this."""
        self._is_wanted = True

    def interrupt(self) -> None:
        """End the current file, as its cluster was lost; another thread calls this."""
        with self._lock:
            self._is_interrupted = True
            if self._recorder is not None:
                self._recorder.stop()

    def stop(self) -> None:
        """End the profile, and write what was sampled until now; another thread calls this."""
        self._over.set()
        for seconds in (LAST_ROUND_S, KILLED_S):  # the second time it is killed
            self.interrupt()
            if self._running is not None:
                within(self._running, seconds)

    def _run(self) -> None:
        while not self._over.is_set():
            address = self._address()
            self._over.wait(self._profile(address) if address else TURN_S)

    def _profile(self, address: str) -> float:
        """Make one file; returns the pause before the next one."""
        began = time.monotonic()
        try:
            recorder = self._new_recorder(address)
            self._save(recorder.record(lambda _: self._note(recorder, began)))
            lasted_s = time.monotonic() - began
            if lasted_s < PERIOD_S:
                raise DstackError(f"The profile ended after {duration(lasted_s)}.", "Another one begins.")
        except Exception as error:
            return 0.0 if self._is_interrupted else self._failed(as_dstack_error(error))
        finally:
            with self._lock:
                self._recorder = None
            self._end_file(is_short=time.monotonic() - began < STEADY_S)
        return 0.0

    def _end_file(self, *, is_short: bool) -> None:
        """The next profile has another file, which replaces a short one that followed a short one."""
        if is_short and self._was_short:
            self._replaced = self._path or self._replaced
        self._path, self._was_short = None, is_short

    def _new_recorder(self, address: str) -> Recorder[Profile]:
        with self._lock:
            self._is_interrupted = self._over.is_set() or not self._address()
            self._recorder = recorder = new_profile(address, PERIOD_S, self._rate_hz, ProfileOptions())
            if self._is_interrupted:
                recorder.stop()
            return recorder

    def _note(self, recorder: Recorder[Profile], began: float) -> None:
        """Note progress: write what is wanted, and say that a failure is over."""
        if not recorder.has_begun:
            return
        if self._is_wanted:
            self._is_wanted = False
            self._save(recorder.so_far())
        if self._failed_at is not None and time.monotonic() - began >= STEADY_S:
            self._events.emit("profile", f"continued {duration(began - self._failed_at)} after its failure")
            self._failed_at, self._pauses = None, pauses()

    def _failed(self, error: DstackError) -> float:
        """Say the first of several failures; returns the pause before the next try."""
        if self._failed_at is None:
            self._failed_at = time.monotonic()
            self._events.emit("profile", f"interrupted: {error.message} Retrying, at least every {MAX_PAUSE_S:g} s")
        return next(self._pauses)

    def _save(self, profile: Profile) -> None:
        """Write the current file anew, whole or not at all; a failure is an event."""
        if not profile.shares:
            return
        try:
            self._path = self._path or self._files.new_file(profile.began_at)
            PROFILES.save(profile, self._path, force=True)
            self.has_saved = True
            if self._replaced:
                self._replaced.unlink(missing_ok=True)
                self._replaced = None
        except (SnapshotFileError, OSError) as error:
            self._events.emit("unsaved", f"{as_dstack_error(error).message} The profile is not saved.")
