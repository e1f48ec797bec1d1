"""The main thread is broken out of what blocks it, and nothing of that reaches what comes after."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from dstack.interruption import Interruption


def place_of_main() -> tuple[object, int]:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code, frame.f_lasti


@pytest.mark.parametrize(
    "block",
    [threading.Event().wait, lambda: time.sleep(60), signal.pause],
    ids=["event", "sleep", "pause"],
)
def test_a_blocked_call_is_broken(block: Callable[[], object]) -> None:
    interruption = Interruption()
    is_broken = threading.Event()

    def strike_when_blocked() -> None:
        places = [place_of_main()]
        while not is_broken.wait(0.02):
            places = [*places, place_of_main()] if place_of_main() == places[-1] else [place_of_main()]
            if len(places) % 50 == 10:  # it did not move for 0.2 s; and again, where it was just about to block
                interruption.strike()

    thread = threading.Thread(target=strike_when_blocked)
    try:
        thread.start()
        block()
    except KeyboardInterrupt:
        is_broken.set()
    interruption.end()
    is_set = is_broken.is_set()
    is_broken.set()
    thread.join()

    assert is_set
    assert interruption.is_struck


def test_nothing_strikes_after_the_end() -> None:
    interruption = Interruption()
    interruption.end()

    assert not interruption.strike()
    assert not interruption.is_struck


def test_a_strike_at_the_very_end_does_not_outlast_it() -> None:
    for turn in range(300):
        interruption = Interruption()
        thread = threading.Thread(target=interruption.strike)
        try:
            thread.start()
            for _ in range(turn):
                pass
            interruption.end()
        except KeyboardInterrupt:
            interruption.end()
        thread.join()  # here nothing may arrive any more
        time.sleep(0)


def test_where_sigint_is_ignored_nothing_is_sent() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not Interruption().strike()
    finally:
        signal.signal(signal.SIGINT, before)
