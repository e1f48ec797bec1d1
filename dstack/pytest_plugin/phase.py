"""One phase of a test, in the main thread, and how others fail it from beside it when it hangs."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from dstack.interruption import Interruption
from dstack.pytest_plugin.settings import Settings
from dstack.visible import visible_lines

if TYPE_CHECKING:
    from dstack.pytest_plugin.look import Look

STRIKES = 2
GRACE_S = 3.0
"""How long the main thread may take to notice an interruption; Ray looks for one about once a second."""

_LIBRARIES = ("/site-packages/", "/dist-packages/", sysconfig.get_path("stdlib") + "/", "<frozen ")
_PYTEST = ("/_pytest/", "/pluggy/")
_TURN_S = 0.01
Place = list[tuple[object, int]]


class Phase:
    """Setup, call or teardown of one test, which may take ``timeout_s`` in all, of which ``left_s`` are left.

    ``failure`` is why it is to fail, None while it is not, and ``sections`` what else is to be told of it.
    """

    def __init__(
        self, item: pytest.Item, when: str, settings: Settings, timeout_s: float | None, left_s: float | None
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
        self._interruption = Interruption()
        self._over = threading.Event()
        self._look: Look | None = None
        self._watch = threading.Thread(target=self._run, name="dstack", daemon=True)

    def begin(self) -> None:
        """From here on the phase may be failed from beside it."""
        self._interruption.begin()
        if self._left_s:
            self._watch.start()

    def end(self, error: BaseException | None) -> None:
        """The phase is over, with an ``error`` or none; nothing interrupts any more.

        A look that is under way is let go on if the test failed otherwise: somebody else may have ended the hang.
        """
        self._interruption.end()
        if self._over.is_set():
            return
        self._over.set()
        has_failed = isinstance(error, (Exception, pytest.fail.Exception))
        if self._look is not None and not has_failed:
            self._look.cancel()
        while self._watch.is_alive():
            time.sleep(_TURN_S)  # a join would be seen by the look: the test would wait for dstack

    def fail(self, text: str) -> None:
        """Has the phase fail now, from any thread; does not wait for it."""
        threading.Thread(target=self._break_off, args=(text,), name="dstack", daemon=True).start()

    def _run(self) -> None:
        wait_s = self._left_s
        while not self._over.wait(wait_s):
            if not self._settings.is_debugging.is_set() and self._is_to_fail():
                return
            wait_s = self._timeout_s

    def _is_to_fail(self) -> bool:
        """Looks, and fails the phase for what is seen; false if it may go on."""
        from dstack.errors import DstackError
        from dstack.pytest_plugin import TOLD
        from dstack.pytest_plugin.look import Look

        told = self._item.config.stash[TOLD]
        place = self._place_in_words()
        self._look = Look(self._item, self._settings, told)
        if self._over.is_set():
            return True
        stuck, what = [], ""
        try:
            seen = self._look.take(keep=True)
            stuck, report = seen.stuck, f"{seen.awaits()}\n{seen.report}"
            diagnosis = seen.analysed.diagnosis
            what = f", {diagnosis.verdict}" if diagnosis.is_stuck else ""
        except DstackError as error:
            report = f"dstack could not take a snapshot. {error}\n"
        text = f"Timeout of {self._timeout_s:g} s{what}: the {self._when} of this test was at\n{place}{report}"
        if self._over.is_set():
            if not self._look.is_cancelled:
                self.sections.append(text)
            return True
        if self._settings.fail_on == "stuck" and not any(one.confirmed or one.assumed for one in stuck):
            return False
        told.update(key for one in stuck for key in one.members)
        self._break_off(text)
        return True

    def _break_off(self, text: str) -> None:
        """Interrupts the test; one that moves on has as much time again, and where nothing moves the session ends."""
        self.failure = self.failure or text
        for _ in range(STRIKES):
            place = self._place()
            if not (self._is_main_thread and self._interruption.strike()) or self._over.wait(GRACE_S):
                break
            if self._place() != place and self._over.wait(max(GRACE_S, self._timeout_s or 0)):
                break
        if not self._over.is_set():
            end_session(self._item, self.failure)

    def _place(self) -> Place:
        frame = self._frame()
        place: Place = []
        while frame is not None:
            place.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return place

    def _place_in_words(self) -> str:
        """Where the test is, from where pytest calls it, in the user's code if there is any."""
        stack = traceback.extract_stack(self._frame())
        of_pytest = [index for index, one in enumerate(stack) if any(part in one.filename for part in _PYTEST)]
        stack[:] = stack[of_pytest[-1] + 1 :] if of_pytest else stack
        own = [one for one in stack if not any(library in one.filename for library in _LIBRARIES)]
        return visible_lines("".join(traceback.format_list(own or stack)))

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread_id)


def end_session(item: pytest.Item, text: str) -> None:
    """Ends this process with what is known, for a test that nothing can interrupt: as pytest-timeout's thread does."""
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
