"""A reading that hangs costs its time once, and never more threads."""

from __future__ import annotations

import threading

from dstack.probes.node.figures.late_reading import LateReading

LONG_S = 60.0


def test_a_result_that_is_there_in_time_is_taken() -> None:
    late: LateReading[int] = LateReading()

    assert late.result(LONG_S) is None
    late.begin(lambda: 1)
    assert late.result(LONG_S) == 1
    late.begin(lambda: 2)
    assert late.result(LONG_S) == 2


def test_an_exception_is_no_result() -> None:
    late: LateReading[float] = LateReading()
    late.begin(lambda: 1 / 0)

    assert late.result(LONG_S) is None


def test_a_reading_that_hangs_is_awaited_once_and_not_begun_again() -> None:
    late: LateReading[int] = LateReading()
    over, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> int:
        begun.release()
        over.wait(LONG_S)
        return 1

    late.begin(hang)
    assert begun.acquire(timeout=LONG_S)
    assert late.result(0.01) is None
    late.begin(hang)
    assert late.result(LONG_S) is None  # at once: a second wait of a minute would fail the test by its deadline
    assert not begun.acquire(blocking=False)

    over.set()
    (thread,) = (one for one in threading.enumerate() if one is late._thread)
    thread.join(LONG_S)
    late.begin(lambda: 2)
    assert late.result(LONG_S) == 2
