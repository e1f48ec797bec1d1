"""The layout of this interpreter, calibrated by searches of its own memory."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

from dstack.probes.node.cpython.layout import Calibration, Specimen, calibrate
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.saved_layouts import TABLES
from tests.unit.support.own_process import own_layout

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
LIBC.free.argtypes = LIBC.malloc_usable_size.argtypes = [ctypes.c_void_p]
CHUNK_HEAD = 8
"""What glibc's ``malloc`` has between two blocks."""
MANY_BLOCKS = 5_000
"""More than there is free memory between others, so that most blocks lie next to each other."""


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


@contextmanager
def specimen_before_own_block() -> Iterator[tuple[Specimen, int]]:
    """A specimen whose thread state is right before a block of memory, and the address of that block."""
    with Specimen() as first:
        first.frame()
        size = LIBC.malloc_usable_size(first.state)
    blocks = sorted(LIBC.malloc(size) for _ in range(MANY_BLOCKS))
    gaps = [one for one, after in pairwise(blocks) if after == one + size + CHUNK_HEAD][::2]
    for gap in gaps:
        LIBC.free(gap)
    with ExitStack() as others:
        specimen = others.enter_context(Specimen())
        while specimen.frame() and specimen.state not in gaps:  # whatever else became free meanwhile comes first
            specimen = others.enter_context(Specimen())
        yield specimen, specimen.state + size + CHUNK_HEAD
    for block in set(blocks) - set(gaps):
        LIBC.free(block)


def test_what_is_in_memory_behind_a_thread_state_is_no_part_of_it() -> None:
    """Addresses of frames can be there: the reader itself copies memory that has them."""
    expected = TABLES[own_layout().version].thread_frame
    with open_memory(os.getpid()) as memory, specimen_before_own_block() as (specimen, behind):
        leaf = specimen.state
        for offset in expected:
            leaf = memory.pointer(leaf + offset)
        ctypes.memmove(behind, struct.pack("<4Q", *[leaf] * 4), 32)

        assert Calibration(memory, specimen).layout().thread_frame == expected
