"""``Work.wait`` of torch.distributed, which C++ runs directly below the caller's own frame.

Seen on torch 2.13 with gloo. The kernel shows the futex on which the thread sleeps. It lies in the C++ object of the
Work (collectives), or in a buffer which that object refers to (send and recv). Which group it is for is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import BOUND_TO, TYPE, Objects
from dstack.probes.node.process_groups.torch_groups import CPP_OBJECT

WORK_WAIT = "Work.wait of torch.distributed"
WORK = "Work"
"""The last part of the name of its type, which pybind11 has made, or of one that inherits from it."""
WORK_BYTES, BUFFER_BYTES = 256, 256
"""How far from its beginning each object has the futex at most: 96, 120 and 168 were seen."""


def is_in_work(objects: Objects, leaf: Frame, futex: int) -> bool:
    """Whether a thread that sleeps on this futex, in a call from this frame, waits for a Work of the frame."""
    with contextlib.suppress(Unreadable):
        return any(_has_futex(objects, work, futex) for work in _works(objects, leaf))
    return False


def _works(objects: Objects, leaf: Frame) -> Iterator[int]:
    """The Work objects among the words of a frame, or whose bound methods are."""
    for word in dict.fromkeys((*leaf.stack, *leaf.locals)):
        if objects.is_a(word, "method"):
            word = objects.memory.pointer(word + BOUND_TO)
        if word and not word % 8 and _is_work(objects, word):
            yield word


def _is_work(objects: Objects, address: int) -> bool:
    with contextlib.suppress(Unreadable):
        names = objects.base_names(objects.memory.pointer(address + TYPE))
        return any(name.rpartition(".")[2] == WORK for name in names)
    return False


def _has_futex(objects: Objects, work: int, futex: int) -> bool:
    with contextlib.suppress(Unreadable):
        start = objects.memory.pointer(work + CPP_OBJECT)
        if 0 <= futex - start < WORK_BYTES:
            return True
        words = objects.memory.mapped_words(start, WORK_BYTES)
        return bool(start) and any(0 <= futex - word < BUFFER_BYTES for word in words)
    return False
