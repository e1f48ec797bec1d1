"""The ``dstack`` fixture: inspects the cluster of the test that requests it, while the test runs."""

from __future__ import annotations

import threading
import time

import pytest

from dstack.api import DeadlockFound
from dstack.diagnosis import Diagnosis
from dstack.errors import DstackError, UsageError
from dstack.model import Snapshot
from dstack.pytest_plugin import PHASE, SECTION, SETTINGS, TOLD
from dstack.pytest_plugin.look import Look, ReportedSnapshot

PAUSE_S = 0.5
PAUSE_SHARE = 2.0
"""Between two looks of a watch passes at least this time, and so many times what the last one took."""


class Dstack:
    """Inspects the Ray cluster that a test uses; each call takes as long as ``dstack check``.

    Findings that failed earlier tests are left out. On a cluster that this process did not start, only the findings of
    its own job are included. All methods raise :class:`dstack.ClusterError` if there is no cluster, or if it is
    unreachable.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._watches: list[Watch] = []

    def __enter__(self) -> Dstack:
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.end()

    def snapshot(self) -> Snapshot:
        """Take a snapshot of the cluster."""
        return self._look().analysed.snapshot

    def check(self) -> Diagnosis:
        """Take a snapshot and return its diagnosis."""
        return self._look().analysed.diagnosis

    def assert_no_deadlock(self, within: float | None = None) -> Watch:
        """Raise :class:`dstack.DeadlockFound` if there is a deadlock or hang, confirmed or suspected.

        With ``within``, return at once and watch the test for this many seconds, or until it ends. A deadlock or hang
        that is confirmed during this time fails the test, even while it is blocked. Use the returned value as a context
        manager to watch only a part of the test.
        """
        if within is None:
            seen = self._look()
            if seen.stuck:
                raise DeadlockFound(seen.report, seen.analysed.snapshot, seen.analysed.diagnosis)
            return Watch(self._item, 0.0)
        if not within > 0:
            raise UsageError("The argument within must be a positive number of seconds.")
        watch = Watch(self._item, within)
        self._watches.append(watch)
        watch.begin()
        return watch

    def _look(self) -> ReportedSnapshot:
        return _look_of(self._item).take()


class Watch:
    """Watches a test for deadlocks and hangs, until its time is over or it is ended."""

    def __init__(self, item: pytest.Item, within_s: float) -> None:
        self._item = item
        self._within_s = within_s
        self._look = _look_of(item)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstack", daemon=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Start to take snapshots."""
        self._thread.start()

    def end(self) -> None:
        """Stop watching; cancel a snapshot that is being taken."""
        self._over.set()
        self._look.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + self._within_s
        trouble: str | None = None
        while not self._over.is_set() and (began := time.monotonic()) < deadline:
            try:
                seen, trouble = self._look.take(keep=True), None
            except DstackError as error:
                trouble = f"could not check for deadlocks. {error}"
            else:
                if self._has_failed(seen):
                    return
            self._over.wait(max(PAUSE_S, PAUSE_SHARE * (time.monotonic() - began)))
        if trouble and not self._over.is_set():
            self._item.add_report_section("call", SECTION, trouble)

    def _has_failed(self, seen: ReportedSnapshot) -> bool:
        told = self._item.config.stash[TOLD]
        confirmed = [one for one in seen.stuck if one.confirmed]
        if not confirmed or self._over.is_set():
            return False
        told.update(key for one in confirmed for key in one.members)
        self._item.stash[PHASE].fail(f"The test is in a deadlock or hang.\n\n{seen.report}")
        return True


def _look_of(item: pytest.Item) -> Look:
    return Look(item, item.config.stash[SETTINGS], item.config.stash[TOLD])
