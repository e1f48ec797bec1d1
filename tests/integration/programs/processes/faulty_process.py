"""A process with the fault that its argument names. It prints ``ready`` when the fault is present, if it can."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
import time
from collections.abc import Callable

DEEP = 300
MANY = 200
HUGE_BYTES = 200_000_000
HUGE_TEXT = 10_000_000


def waits() -> None:
    """No fault: it waits for a thread that sleeps for ever."""
    sleeper = threading.Thread(target=time.sleep, args=(100_000,), name="sleeper")
    sleeper.start()
    ready()
    sleeper.join()


def runs() -> None:
    ready()
    spin()


def holds_gil_in_c() -> None:
    ready()
    while True:
        ctypes.PyDLL(None).usleep(60_000_000)


def loops_in_c() -> None:
    """Run on the CPU without the GIL."""
    ready()
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 50_000_000)


def is_deep() -> None:
    """Block in a deep recursion, beside a running thread."""
    threading.Thread(target=spin, daemon=True).start()
    descend(DEEP)


def descend(depth: int) -> None:
    if depth:
        descend(depth - 1)
    ready()
    threading.Event().wait()


def has_many_threads() -> None:
    """Many threads wait for one lock that is never released, beside a running thread."""
    gate = threading.Lock()
    gate.acquire()
    started = threading.Barrier(MANY + 1)

    def wait() -> None:
        started.wait()
        gate.acquire()

    for number in range(MANY):
        threading.Thread(target=wait, name=f"waits-{number}", daemon=True).start()
    started.wait()
    threading.Thread(target=spin, daemon=True).start()
    ready()
    threading.Event().wait()


def has_huge_locals() -> None:
    """Hundreds of MB in locals, with a text of 10 MB, beside a running thread."""
    data, text = bytes(HUGE_BYTES), "t" * HUGE_TEXT
    items, numbers = [None] * (HUGE_BYTES // 8), dict.fromkeys(range(1_000_000), "x" * 10)
    threading.Thread(target=spin, daemon=True).start()
    lock = threading.Lock()
    lock.acquire()
    ready()
    lock.acquire()
    print(data, text, items, numbers)


def spin() -> None:
    while True:
        sum(range(1000))


def ready() -> None:
    print("ready", flush=True)


FAULTS: tuple[Callable[[], None], ...] = (
    waits,
    runs,
    holds_gil_in_c,
    loops_in_c,
    is_deep,
    has_many_threads,
    has_huge_locals,
)

if __name__ == "__main__":
    next(one for one in FAULTS if one.__name__ == sys.argv[1])()
