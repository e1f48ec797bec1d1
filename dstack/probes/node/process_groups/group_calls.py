"""What a blocked call on a process group depends on, by the frames of its thread.

Seen on torch 2.13 with gloo, and on Ray 2.60. A thread in a collective sleeps on a futex until the other members come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.cpython.values import CELL_VALUE
from dstack.probes.node.process_groups.environment import number_of
from dstack.probes.node.process_groups.memberships import ProcessGroups
from dstack.probes.node.process_groups.ray_groups import LIBRARY as RAY
from dstack.probes.node.process_groups.ray_groups import group_of_ray
from dstack.probes.node.process_groups.torch_groups import (
    DEFAULT_GROUP,
    MAX_ADDRESS,
    MAX_DESCRIPTION,
    MAX_MEMBERS,
    MAX_NAME,
)
from dstack.probes.node.process_groups.torch_groups import LIBRARY as TORCH_LIBRARY
from dstack.probes.node.procfs.proc import SystemCall, scheduler_mark
from dstack.probes.node.threads import is_in
from dstack.probes.node.waits.known_waits import COLLECTIVE, IN_CALLERS, RENDEZVOUS, TORCH, Place, place_of
from dstack.probes.node.wire import GroupCallData, GroupData

RAY_START = "init_collective_group"
RANKS_IN = (
    (TORCH, "_new_process_group_helper", "group_rank", "group_size"),
    (RENDEZVOUS, "_create_c10d_store", "rank", "world_size"),
    (TORCH, "init_process_group", "rank", "world_size"),
)
"""Functions below ``init_process_group``, innermost first, with the locals that have the own rank and the size."""
PEER_IN_GROUP, PEER_IN_WORLD = ("group_src", "group_dst"), ("src", "dst", "src_rank", "dst_rank")
"""Arguments that name one member by its rank; torch sets the first two also where it is given one of the others."""
FUTEX_WAIT_UNTIL, FUTEX_CLOCK_REALTIME = 9, 256
FUTEX_FLAGS = 128 | FUTEX_CLOCK_REALTIME
"""The operation of a futex call that waits until a point in time, FUTEX_WAIT_BITSET of Linux, and its flags."""
LONGEST_TIMEOUT_S = 366 * 86_400.0


class GroupCalls:
    """The calls on process groups that threads of one process are blocked in."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self._objects = process.objects
        self.groups = ProcessGroups(process)

    def call_of(self, frames: Sequence[Frame], at: int, thread: int, call: SystemCall) -> GroupCallData | None:
        """The call at this frame, in which this thread is blocked; None where it is none, or cannot be read."""
        place = place_of(frames[at], IN_CALLERS)
        if place is None or not place.operation:
            return None
        with contextlib.suppress(Unreadable):
            is_ray = place.library == RAY
            operation, group = self._ray(frames[: at + 1], place) if is_ray else self._torch(frames[: at + 1], place)
            if group is None:
                return None
            return {
                "operation": operation,
                "group": group,
                "peer": self._peer(frames[at], group),
                "mark": "" if call.is_sleep else (scheduler_mark(self._process.memory.pid, thread) or "").strip(),
                "fails_at": self._fails_at(call),
            }
        return None

    # ray.util.collective

    def _ray(self, frames: Sequence[Frame], place: Place) -> tuple[str, GroupData | None]:
        """The operation and the group; a group that was only declared is started by the first operation on it."""
        start = _frame_in(frames, COLLECTIVE, "create_collective_group")
        if start is not None and start.has("backend"):
            rank, size = (self._number(start, name) for name in ("rank", "world_size"))
            return RAY_START, group_of_ray(self._text(start, "group_name", MAX_NAME), rank, size)
        return place.operation, self.groups.ray.by_name.get(self._text(frames[-1], "group_name", MAX_NAME))

    # torch.distributed

    def _torch(self, frames: Sequence[Frame], place: Place) -> tuple[str, GroupData | None]:
        match place.operation:
            case "init_process_group":
                return place.operation, self._default_group(frames)
            case "new_group":
                return place.operation, self._new_group(frames)
        group = self._local(frames[-1], "group")
        return place.operation, self.groups.torch.of_address(group) if group else None

    def _default_group(self, frames: Sequence[Frame]) -> GroupData | None:
        """The default group while it is made: all ranks of the world must come."""
        rank, size = self._rank_and_size(frames)
        if rank is None or size is None or not 0 <= rank < size <= MAX_MEMBERS:
            return None
        is_text = self._objects.is_a(self._local(frames[-1], "init_method"), "str")
        method = self._text(frames[-1], "init_method", MAX_ADDRESS) if is_text else None
        return {
            "library": TORCH_LIBRARY,
            "world": self.groups.torch.address_of(method),
            "name": "",
            "rank": rank,
            "ranks": list(range(size)),
            "description": DEFAULT_GROUP,
        }

    def _rank_and_size(self, frames: Sequence[Frame]) -> tuple[int | None, int | None]:
        """By the innermost frame that has them, else by the launcher's variables; -1 stands for these."""
        for file, function, rank_name, size_name in RANKS_IN:
            frame = _frame_in(frames, file, function)
            rank, size = (self._number(frame, name) if frame else None for name in (rank_name, size_name))
            if rank is not None and size is not None and rank >= 0 and size > 0:
                return rank, size
        variables = self.groups.torch.variables
        return number_of(variables, "RANK"), number_of(variables, "WORLD_SIZE")

    def _new_group(self, frames: Sequence[Frame]) -> GroupData | None:
        """A group while it is made: its members must come; all of the world where torch has a barrier for them."""
        default, made = self.groups.torch.default, _frame_in(frames, TORCH, "_new_group_with_tag")
        if default is None or made is None:
            return None
        barrier = _frame_in(frames, TORCH, "_store_based_barrier")
        ranks = default["ranks"]
        members = self._local(made, "ranks")
        if self._objects.is_a(members, "list", "tuple"):
            ranks = [int(self._objects.number(one) or 0) for one in self._objects.items(members, MAX_MEMBERS)]
        if barrier and self._number(barrier, "rendezvous_count") == len(default["ranks"]):
            ranks = default["ranks"]
        if default["rank"] not in ranks or not set(ranks) <= set(default["ranks"]):
            return None
        name, description = self._text(made, "group_name", MAX_NAME), self._text(made, "group_desc", MAX_DESCRIPTION)
        return {**default, "name": name, "ranks": ranks, "description": description}

    # Details of a call

    def _peer(self, frame: Frame, group: GroupData) -> int | None:
        """The rank in the world of the one other member that a call is for, or of its root."""
        ranks = group["ranks"]
        for name in PEER_IN_GROUP:
            number = self._number(frame, name)
            if number is not None:
                return ranks[number] if 0 <= number < len(ranks) else None
        numbers = (self._number(frame, name) for name in PEER_IN_WORLD)
        return next((number for number in numbers if number in ranks), None)

    def _fails_at(self, call: SystemCall) -> float | None:
        """When the wait for a futex ends, as the time of day."""
        if call.futex_deadline is None or call.arguments[1] & ~FUTEX_FLAGS != FUTEX_WAIT_UNTIL:
            return None
        with contextlib.suppress(Unreadable):
            seconds, nanoseconds = self._process.memory.unpack("<qq", call.futex_deadline)
            is_unix_time = call.arguments[1] & FUTEX_CLOCK_REALTIME
            deadline = float(seconds + nanoseconds / 1e9 + (0 if is_unix_time else time.time() - time.monotonic()))
            if 0 <= nanoseconds < 10**9 and 0 < deadline - time.time() < LONGEST_TIMEOUT_S:
                return deadline
        return None

    # Values of locals

    def _local(self, frame: Frame, name: str) -> int:
        """The address of what a local refers to, also where a function within uses it; 0 where it has no value."""
        address = frame.local(name)
        is_cell = self._objects.is_a(address, "cell")
        return self._process.memory.pointer(address + CELL_VALUE) if is_cell else address

    def _number(self, frame: Frame, name: str) -> int | None:
        address = self._local(frame, name)
        return int(self._objects.number(address) or 0) if self._objects.is_a(address, "int") else None

    def _text(self, frame: Frame, name: str, longest: int) -> str:
        """The text of a local, empty where it has none."""
        address = self._local(frame, name)
        return self._objects.text(address, longest) if self._objects.is_a(address, "str") else ""


def _frame_in(frames: Sequence[Frame], file: str, function: str) -> Frame | None:
    """The innermost frame in this function."""
    return next((frame for frame in frames if is_in(frame, file, function)), None)
