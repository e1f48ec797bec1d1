"""The calls of torch.distributed that threads of a process are blocked in, by the frames below them.

Seen on torch 2.13 with gloo: a thread in a collective sleeps on a futex until the other members come. It may wait for a
Work, an operation that has begun before: ``Work.wait`` runs in C++ directly below the caller's own frame. The futex on
which the kernel shows the thread lies in the C++ object of the Work (collectives), or in a buffer which that object
refers to (send and recv).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dstack.libraries.torch.gloo import Gloo
from dstack.libraries.torch.groups import (
    CPP_OBJECT,
    DEFAULT_GROUP,
    MAX_ADDRESS,
    MAX_DESCRIPTION,
    MAX_MEMBERS,
    MAX_NAME,
    TorchGroups,
)
from dstack.libraries.torch.sites import BACKWARD, BACKWARD_WAIT, DISTRIBUTED, RENDEZVOUS, WORK_WAIT
from dstack.observed.call_site import Site
from dstack.observed.calls import TORCH, ProcessGroup
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import BOUND_TO, Objects
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.named_values import frame_in, number_in, number_of, text_in
from dstack.probes.node.procfs.proc import SystemCall
from dstack.probes.node.thread_stacks import is_in

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
RANKS_IN = (
    (DISTRIBUTED, "_new_process_group_helper", "group_rank", "group_size"),
    (RENDEZVOUS, "_create_c10d_store", "rank", "world_size"),
    (DISTRIBUTED, "init_process_group", "rank", "world_size"),
)
"""Functions below ``init_process_group``, innermost first, with the locals that have the own rank and the size."""


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


@dataclass(frozen=True, slots=True)
class BegunOperation:
    """A wait for an operation that has begun before, at this site; ``group`` is None if it is not known."""

    site: Site
    operation: str
    group: ProcessGroup | None


class TorchCalls:
    """The calls on the groups of one process."""

    def __init__(self, process: PythonProcess, groups: TorchGroups) -> None:
        self._objects = process.objects
        self._groups = groups
        self.gloo = Gloo(process.memory, groups)

    def begun(self, leaf: Frame, call: SystemCall) -> BegunOperation | None:
        """The operation that a thread waits for in C++, right below this frame; None for any other wait.

        Its group is that of gloo's collectives in progress, if these belong to a single group.
        """
        if call.futex is None:
            return None
        if is_in(leaf, *BACKWARD):
            return BegunOperation(BACKWARD_WAIT, "backward", self.gloo.group) if self.gloo.is_in_backward else None
        work = work_of(self._objects, leaf, call.futex)
        if work is None:
            return None
        return BegunOperation(WORK_WAIT, work.operation or "Work.wait", self.gloo.group if work.is_collective else None)

    def operation_and_group(self, frames: Sequence[Frame], site: Site) -> tuple[str, ProcessGroup | None]:
        """The operation of a call, the outermost of these frames, and its group, None if that is not known."""
        match site.operation:
            case "init_process_group":
                return site.operation, self._default_group(frames)
            case "new_group":
                return site.operation, self._new_group(frames)
            case "wait_tensor":
                return site.operation, self.gloo.group
        group = frames[-1].local("group")
        return site.operation, self._groups.of_address(group) if group else None

    def _default_group(self, frames: Sequence[Frame]) -> ProcessGroup | None:
        """The default group while it is made: all ranks of the world must come."""
        rank, size = self._rank_and_size(frames)
        if rank is None or size is None or not 0 <= rank < size <= MAX_MEMBERS:
            return None
        is_text = self._objects.is_a(frames[-1].local("init_method"), "str")
        method = text_in(self._objects, frames[-1], "init_method", MAX_ADDRESS) if is_text else None
        return ProcessGroup(
            library=TORCH,
            world=self._groups.address_of(method),
            name="",
            rank=rank,
            ranks=tuple(range(size)),
            description=DEFAULT_GROUP,
        )

    def _rank_and_size(self, frames: Sequence[Frame]) -> tuple[int | None, int | None]:
        """From the innermost frame that has them, else from the launcher's variables; -1 means the variables."""
        for file, function, rank_name, size_name in RANKS_IN:
            frame = frame_in(frames, file, function)
            rank, size = (number_in(self._objects, frame, name) if frame else None for name in (rank_name, size_name))
            if rank is not None and size is not None and rank >= 0 and size > 0:
                return rank, size
        variables = self._groups.variables
        return number_of(variables, "RANK"), number_of(variables, "WORLD_SIZE")

    def _new_group(self, frames: Sequence[Frame]) -> ProcessGroup | None:
        """A group while it is made: its members must come; all of the world where torch has a barrier for them."""
        default, made = self._groups.default, frame_in(frames, DISTRIBUTED, "_new_group_with_tag")
        if default is None or made is None:
            return None
        barrier = frame_in(frames, DISTRIBUTED, "_store_based_barrier")
        ranks = default.ranks
        members = made.local("ranks")
        if self._objects.is_a(members, "list", "tuple"):
            ranks = tuple(int(self._objects.number(one) or 0) for one in self._objects.items(members, MAX_MEMBERS))
        if barrier and number_in(self._objects, barrier, "rendezvous_count") == len(default.ranks):
            ranks = default.ranks
        if default.rank not in ranks or not set(ranks) <= set(default.ranks):
            return None
        name, description = (
            text_in(self._objects, made, "group_name", MAX_NAME),
            text_in(self._objects, made, "group_desc", MAX_DESCRIPTION),
        )
        return replace(default, name=name, ranks=ranks, description=description)
