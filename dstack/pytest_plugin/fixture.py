"""The ``dstack`` fixture: inspects the cluster of the test that requests it, while the test runs."""

from __future__ import annotations

import threading
import time

import pytest

from dstack.api import DeadlockFound
from dstack.errors import DstackError, UsageError
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from dstack.pytest_plugin.inspection import Inspection, Inspector
from dstack.pytest_plugin.options import SECTION, SETTINGS
from dstack.pytest_plugin.phase import PHASE

PAUSE_S = 0.5
PAUSE_SHARE = 2.0
"""A watch pauses between snapshots for ``PAUSE_S``, or ``PAUSE_SHARE`` times the last one's duration if longer."""


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
        return self._inspect().analysed.snapshot

    def check(self) -> Diagnosis:
        """Take a snapshot and return its diagnosis."""
        return self._inspect().analysed.diagnosis

    def assert_no_deadlock(self, within: float | None = None) -> Watch:
        """Raise :class:`dstack.DeadlockFound` if there is a deadlock or hang, confirmed or suspected.

        With ``within``, return at once and watch the test for this many seconds, or until it ends. A deadlock or hang
        that is confirmed during this time fails the test, even while it is blocked. Use the returned value as a context
        manager to watch only a part of the test.
        """
        if within is None:
            inspection = self._inspect()
            if inspection.stuck:
                raise DeadlockFound(inspection.report, inspection.analysed.snapshot, inspection.analysed.diagnosis)
            return Watch(self._item, 0.0)
        if not within > 0:
            raise UsageError("The argument within must be a positive number of seconds.", "Give a larger number.")
        watch = Watch(self._item, within)
        self._watches.append(watch)
        watch.begin()
        return watch

    def _inspect(self) -> Inspection:
        return _inspector(self._item).inspect()


class Watch:
    """Watches a test for deadlocks and hangs, until its time is over or it is ended."""

    def __init__(self, item: pytest.Item, within_s: float) -> None:
        self._item = item
        self._within_s = within_s
        self._inspector = _inspector(item)
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
        self._inspector.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        deadline = time.monotonic() + self._within_s
        error_text: str | None = None
        while not self._over.is_set() and (began := time.monotonic()) < deadline:
            try:
                inspection, error_text = self._inspector.inspect(keep=True), None
            except DstackError as error:
                error_text = f"could not check for deadlocks. {error}"
            else:
                if self._has_failed(inspection):
                    return
            self._over.wait(max(PAUSE_S, PAUSE_SHARE * (time.monotonic() - began)))
        if error_text and not self._over.is_set():
            self._item.add_report_section("call", SECTION, error_text)

    def _has_failed(self, inspection: Inspection) -> bool:
        confirmed = [one for one in inspection.stuck if one.confirmed]
        if not confirmed or self._over.is_set():
            return False
        self._item.config.stash[SETTINGS].reported.update(key for one in confirmed for key in one.members)
        text = f"The test is in a deadlock or hang.\n\n{inspection.report}{self._inspector.page_note(inspection)}"
        phase = self._item.stash[PHASE]
        if self._over.is_set():  # while the page was made: there is nothing to interrupt any more
            phase.failure = phase.failure or text
        else:
            phase.fail(text)
        return True


def _inspector(item: pytest.Item) -> Inspector:
    return Inspector(item, item.config.stash[SETTINGS])
