"""The Work that a thread waits for, an operation of torch.distributed that has begun before.

``Work.wait`` runs in C++ directly below the caller's own frame. The kernel shows the futex on which the thread sleeps.
It lies in the C++ object of the Work (collectives), or in a buffer which that object refers to (send and recv). Seen on
torch 2.13 with gloo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from dstack.libraries.torch.groups import CPP_OBJECT
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import BOUND_TO, Objects

WORK = "Work"
"""The last part of the name of its type, which pybind11 has made, or of one that inherits from it."""
WORK_BYTES, BUFFER_BYTES = 256, 256
"""The maximum offset of the futex in each object; 96, 120 and 168 were observed."""
RANK_AND_OPERATION = 120
"""The offset of a rank, which is -1 with gloo, and of the number of the operation in a byte."""
OPERATIONS = {
    0: "broadcast",
    1: "all_reduce",
    3: "reduce",
    4: "all_gather",
    5: "all_gather_into_tensor",
    7: "gather",
    8: "scatter",
    9: "reduce_scatter",
    10: "all_to_all_single",
    11: "all_to_all",
    15: "barrier",
    16: "reduce_scatter_tensor",
}
"""``c10d::OpType``; the numbers of all_reduce and barrier were verified."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a thread waits for: a collective, or else a send or recv; ``operation`` is empty where it is not known."""

    is_collective: bool
    operation: str = ""


def work_of(objects: Objects, leaf: Frame, futex: int) -> Work | None:
    """The Work among the objects of a frame that owns the futex on which the thread sleeps; None for none."""
    with contextlib.suppress(Unreadable):
        found = (_if_waited_for(objects, address, futex) for address in _works(objects, leaf))
        return next(filter(None, found), None)
    return None


def _works(objects: Objects, leaf: Frame) -> Iterator[int]:
    """The Work objects among the words of a frame, or whose bound methods are."""
    for word in dict.fromkeys((*leaf.stack, *leaf.locals)):
        if objects.is_a(word, "method"):
            word = objects.memory.pointer(word + BOUND_TO)
        if objects.is_kind_of(word, WORK):
            yield word


def _if_waited_for(objects: Objects, address: int, futex: int) -> Work | None:
    memory = objects.memory
    with contextlib.suppress(Unreadable):
        start = memory.pointer(address + CPP_OBJECT)
        if 0 <= futex - start < WORK_BYTES:
            rank, operation = memory.unpack("<iB", start + RANK_AND_OPERATION)
            return Work(is_collective=True, operation=OPERATIONS.get(operation, "") if rank == -1 else "")
        words = memory.mapped_words(start, WORK_BYTES) if start else ()
        if any(0 <= futex - word < BUFFER_BYTES for word in words):
            return Work(is_collective=False)
    return None
