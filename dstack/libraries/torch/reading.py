"""The calls of torch.distributed that threads of a process are blocked in, by the frames below them.

Seen on torch 2.13 and 2.15 with gloo: a thread in a collective sleeps on a futex until the other members come. It may
wait for a Work, an operation that has begun before: ``Work.wait`` runs in C++ right below the caller's own frame. The
futex on which the kernel shows the thread lies in the C++ object of the Work (collectives), or in a buffer which that
object refers to (send and recv).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dstack.libraries.torch import BACKWARD, BACKWARD_WAIT, DISTRIBUTED, RENDEZVOUS, WORK_WAIT
from dstack.libraries.torch.groups import (
    CPP_OBJECT,
    DEFAULT_GROUP,
    MAX_ADDRESS,
    MAX_DESCRIPTION,
    MAX_MEMBERS,
    MAX_NAME,
    TorchGroups,
)
from dstack.observed.call_site import Site
from dstack.observed.calls import TORCH, ProcessGroup
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import BOUND_TO, Objects
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.named_values import frame_in, number_in, number_of, text_in
from dstack.probes.node.procfs.proc import SystemCall, system_call, thread_name, thread_started, threads
from dstack.probes.node.thread_stacks import is_in

FUTEX_WAIT_UNTIL, FUTEX_CLOCK_REALTIME = 9, 256
FUTEX_FLAGS = 128 | FUTEX_CLOCK_REALTIME
"""The operation of a futex call that waits until a point in time, FUTEX_WAIT_BITSET of Linux, and its flags."""
LONGEST_S = 366 * 86_400.0
GLOO_THREAD, AUTOGRAD_THREAD = "pt_gloo_runloop", "pt_autograd_"
"""The names of gloo's threads, and how those of a backward pass on GPUs begin."""
THREADS_OF_GROUP = 2
"""Torch's default for gloo."""


class Gloo:
    """The collectives of gloo in one process, with the time at which they end with an error; nothing is raised.

    Each group has two threads, which run its collectives. They are started in the order in which the groups are made.
    One that runs a collective sleeps on a futex until the timeout of the group; an idle one has no timeout. The thread
    of the program, which waits for them, has none either, but in a send or receive. Seen with torch 2.13 and 2.15 on
    Linux x86-64.
    """

    def __init__(self, memory: ProcessMemory, groups: TorchGroups) -> None:
        self._memory = memory
        self._groups = groups

    @property
    def ends_at(self) -> float | None:
        """When the only collective in progress ends with an error; None if there are several, or none."""
        return next(iter(self._in_progress.values())) if len(self._in_progress) == 1 else None

    @property
    def is_in_backward(self) -> bool:
        """Whether a thread that sleeps in a backward pass waits for a collective: one is in progress, and no GPU."""
        return bool(self._in_progress) and not any(one.startswith(AUTOGRAD_THREAD) for one in self._names.values())

    @cached_property
    def group(self) -> ProcessGroup | None:
        """The group of all collectives in progress; None if they belong to several, or it is unknown."""
        busy = {at // THREADS_OF_GROUP for at in self._in_progress}
        groups = self._groups.with_gloo
        is_known = len(busy) == 1 and len(groups) * THREADS_OF_GROUP == len(self._threads)
        return groups[busy.pop()] if is_known else None

    @cached_property
    def _threads(self) -> list[int]:
        """Gloo's threads in the order of their start."""
        pid = self._memory.pid
        own = [thread for thread, name in self._names.items() if name == GLOO_THREAD]
        return sorted(own, key=lambda thread: (thread_started(pid, thread), thread))

    @cached_property
    def _names(self) -> dict[int, str]:
        return {thread: thread_name(self._memory.pid, thread) for thread in threads(self._memory.pid)}

    @cached_property
    def _in_progress(self) -> dict[int, float]:
        """The Unix time at which each collective in progress ends with an error, by its place among the threads."""
        calls = [system_call(self._memory.pid, thread) for thread in self._threads]
        ends = [deadline_of(self._memory, call) if call else None for call in calls]
        return {at: end for at, end in enumerate(ends) if end is not None}


def deadline_of(memory: ProcessMemory, call: SystemCall) -> float | None:
    """The Unix time at which a wait for a futex ends; None where it has none."""
    if call.futex_deadline is None or call.arguments[1] & ~FUTEX_FLAGS != FUTEX_WAIT_UNTIL:
        return None
    with contextlib.suppress(UnreadableMemory):
        seconds, nanoseconds = memory.unpack("<qq", call.futex_deadline)
        is_unix_time = call.arguments[1] & FUTEX_CLOCK_REALTIME
        deadline = float(seconds + nanoseconds / 1e9 + (0 if is_unix_time else time.time() - time.monotonic()))
        if 0 <= nanoseconds < 10**9 and 0 < deadline - time.time() < LONGEST_S:
            return deadline
    return None


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


def work_of(objects: Objects, leaf: MemoryFrame, futex: int) -> Work | None:
    """The Work among the objects of a frame that owns the futex on which the thread sleeps; None for none."""
    with contextlib.suppress(UnreadableMemory):
        found = (_if_waited_for(objects, address, futex) for address in _works(objects, leaf))
        return next(filter(None, found), None)
    return None


def _works(objects: Objects, leaf: MemoryFrame) -> Iterator[int]:
    """The Work objects among the words of a frame, or whose bound methods are."""
    for word in dict.fromkeys((*leaf.stack, *leaf.locals)):
        if objects.is_a(word, "method"):
            word = objects.memory.pointer(word + BOUND_TO)
        if objects.is_kind_of(word, WORK):
            yield word


def _if_waited_for(objects: Objects, address: int, futex: int) -> Work | None:
    memory = objects.memory
    with contextlib.suppress(UnreadableMemory):
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

    def begun(self, leaf: MemoryFrame, call: SystemCall) -> BegunOperation | None:
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

    def operation_and_group(self, frames: Sequence[MemoryFrame], site: Site) -> tuple[str, ProcessGroup | None]:
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

    def world_made(self, frames: Sequence[MemoryFrame]) -> str:
        """The rendezvous address of the default group that another library makes in these frames; empty for none."""
        at = next((at for at, one in enumerate(frames) if is_in(one, DISTRIBUTED, "init_process_group")), None)
        group = self._default_group(frames[: at + 1]) if at is not None else None
        return group.world if group else ""

    def _default_group(self, frames: Sequence[MemoryFrame]) -> ProcessGroup | None:
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

    def _rank_and_size(self, frames: Sequence[MemoryFrame]) -> tuple[int | None, int | None]:
        """From the innermost frame that has them, else from the launcher's variables; -1 means the variables."""
        for file, function, rank_name, size_name in RANKS_IN:
            frame = frame_in(frames, file, function)
            rank, size = (number_in(self._objects, frame, name) if frame else None for name in (rank_name, size_name))
            if rank is not None and size is not None and rank >= 0 and size > 0:
                return rank, size
        variables = self._groups.variables
        return number_of(variables, "RANK"), number_of(variables, "WORLD_SIZE")

    def _new_group(self, frames: Sequence[MemoryFrame]) -> ProcessGroup | None:
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
