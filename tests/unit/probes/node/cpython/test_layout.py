"""The layout of this interpreter, which is found by searches of its own memory."""

from __future__ import annotations

import threading

from dstack.probes.node.cpython.layout import calibrate


def test_threads_that_start_and_end_do_not_disturb_the_calibration() -> None:
    expected, is_over = calibrate(), threading.Event()

    def start_threads() -> None:
        while not is_over.is_set():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    starter = threading.Thread(target=start_threads)
    starter.start()
    try:
        assert [calibrate() for _ in range(50)] == [expected] * 50
    finally:
        is_over.set()
        starter.join()
