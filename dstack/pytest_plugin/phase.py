"""One phase of a test, and how other threads fail it when it hangs."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from dstack.processes.interruption import InterruptibleCode
from dstack.pytest_plugin.options import PluginSettings
from dstack.words import visible_lines

if TYPE_CHECKING:
    from dstack.model.diagnosis import Finding
    from dstack.pytest_plugin.inspection import Inspector

MAX_INTERRUPTIONS = 2
GRACE_S = 3.0
"""How long the main thread may take to notice an interruption; Ray checks for one about once a second."""

_LIBRARIES = ("/site-packages/", "/dist-packages/", sysconfig.get_path("stdlib") + "/", "<frozen ")
_PYTEST = ("/_pytest/", "/pluggy/")
_POLL_S = 0.01
StackPosition = list[tuple[object, int]]
"""The code object and instruction of each frame of a thread, the innermost first."""


class Phase:
    """Setup, call or teardown of one test, with ``left_s`` seconds left of the test's ``timeout_s``.

    ``failure`` is the text with which the test is to fail, if any; ``sections`` are further texts for its report.
    """

    def __init__(
        self, item: pytest.Item, when: str, settings: PluginSettings, timeout_s: float | None, left_s: float | None
    ) -> None:
        self.failure: str | None = None
        self.sections: list[str] = []
        self._item = item
        self._when = when
        self._settings = settings
        self._timeout_s = timeout_s
        self._left_s = left_s
        self._is_main_thread = threading.current_thread() is threading.main_thread()
        self._thread_id = threading.get_ident()
        self._interruption = InterruptibleCode()
        self._over = threading.Event()
        self._inspector: Inspector | None = None
        self._watch = threading.Thread(target=self._run, name="dstack", daemon=True)

    def begin(self) -> None:
        """Allows other threads to fail the phase, and starts the timeout."""
        self._interruption.begin()
        if self._left_s:
            self._watch.start()

    def end(self, error: BaseException | None) -> None:
        """Ends the phase, with an ``error`` or none: nothing interrupts the test any more.

        If the test failed for another reason, a running snapshot is completed: that reason may have ended the hang.
        """
        self._interruption.end()
        if self._over.is_set():
            return
        self._over.set()
        has_failed = isinstance(error, (Exception, pytest.fail.Exception))
        if self._inspector is not None and not has_failed:
            self._inspector.cancel()
        while self._watch.is_alive():
            time.sleep(_POLL_S)  # with a join, the snapshot would show the test waiting for dstack

    def fail(self, text: str) -> None:
        """Fails the phase now, from any thread, without waiting for its end."""
        threading.Thread(target=self._interrupt, args=(text,), name="dstack", daemon=True).start()

    def _run(self) -> None:
        wait_s = self._left_s
        while not self._over.wait(wait_s):
            if not self._settings.is_debugging.is_set() and self._handle_timeout():
                return
            wait_s = self._timeout_s

    def _handle_timeout(self) -> bool:
        """Takes a snapshot and fails the phase with it; false if the test may continue."""
        from dstack.errors import DstackError
        from dstack.pytest_plugin.inspection import Inspector

        stack = self._stack_text()
        self._inspector = Inspector(self._item, self._settings)
        if self._over.is_set():
            return True
        stuck: Sequence[Finding] = ()
        verdict = ""
        try:
            inspection = self._inspector.inspect(keep=True)
            stuck, report = inspection.stuck, f"{inspection.coroutine_lines()}\n{inspection.report}"
            verdict = f", {inspection.analysed.diagnosis.verdict}" if inspection.analysed.diagnosis.is_stuck else ""
            if not (may_continue := self._may_continue(stuck)):
                report += self._inspector.page_note(inspection)
        except DstackError as error:
            report = f"dstack could not take a snapshot. {error}\n"
            may_continue = self._may_continue(stuck)
        text = f"Timeout of {self._timeout_s:g} s{verdict}: the {self._when} of this test was at\n{stack}{report}"
        if self._over.is_set():
            if not self._inspector.is_cancelled:
                self.sections.append(text)
            return True
        if may_continue:
            return False
        self._settings.reported.update(key for one in stuck for key in one.members)
        self._interrupt(text)
        return True

    def _may_continue(self, stuck: Sequence[Finding]) -> bool:
        """Whether only a deadlock or hang fails the test, and there is none."""
        return self._settings.fail_on == "stuck" and not any(one.confirmed or one.assumed for one in stuck)

    def _interrupt(self, text: str) -> None:
        """Interrupts the test. If it makes progress it gets its timeout again; if it makes none the session ends."""
        self.failure = self.failure or text
        for _ in range(MAX_INTERRUPTIONS):
            position = self._position()
            if not (self._is_main_thread and self._interruption.interrupt()) or self._over.wait(GRACE_S):
                break
            if self._position() != position and self._over.wait(max(GRACE_S, self._timeout_s or 0)):
                break
        if not self._over.is_set():
            end_session(self._item, self.failure)

    def _position(self) -> StackPosition:
        frame = self._frame()
        position: StackPosition = []
        while frame is not None:
            position.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return position

    def _stack_text(self) -> str:
        """The stack of the test below pytest's frames, only its user code if it has any."""
        stack = traceback.extract_stack(self._frame())
        of_pytest = [index for index, one in enumerate(stack) if any(part in one.filename for part in _PYTEST)]
        stack[:] = stack[of_pytest[-1] + 1 :] if of_pytest else stack
        own = [one for one in stack if not any(library in one.filename for library in _LIBRARIES)]
        return visible_lines("".join(traceback.format_list(own or stack)))

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread_id)


PHASE = pytest.StashKey[Phase]()


def end_session(item: pytest.Item, text: str) -> None:
    """Prints the failure and ends this process, for a test that nothing can interrupt, as pytest-timeout does."""
    captured = ""
    try:
        capture = item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
            captured = "".join(capture.read_global_capture())
        parts = (f"\n{item.nodeid}\n{text}", captured, "The test cannot be interrupted, so dstack ends the session.\n")
        os.write(2, "\n".join(part for part in parts if part).encode(errors="replace"))
    finally:
        os._exit(1)
