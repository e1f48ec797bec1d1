"""What a blocked call on a process group depends on, by the frames of its thread.

Seen on torch 2.13 with gloo, and on Ray 2.60. A thread in a collective sleeps on a futex until the other members come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from dstack.call_site import Site
from dstack.libraries.collective.sites import FILE as COLLECTIVE
from dstack.libraries.torch.sites import BACKWARD, BACKWARD_WAIT, DISTRIBUTED, RENDEZVOUS, WORK_WAIT
from dstack.observed_calls import RAY, TORCH, Call, GroupCall, Need, ProcessGroup, ProcessObject
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.process_groups.environment import number_of
from dstack.probes.node.process_groups.gloo import Gloo, deadline_of
from dstack.probes.node.process_groups.memberships import ProcessGroups
from dstack.probes.node.process_groups.ray_groups import group_of_ray
from dstack.probes.node.process_groups.torch_groups import (
    DEFAULT_GROUP,
    MAX_ADDRESS,
    MAX_DESCRIPTION,
    MAX_MEMBERS,
    MAX_NAME,
)
from dstack.probes.node.process_groups.works import Work, work_of
from dstack.probes.node.procfs.proc import SystemCall, scheduler_mark
from dstack.probes.node.ray.tensor_transfers import transferred
from dstack.probes.node.threads import is_in
from dstack.probes.node.waits.known_sites import IN_CALLERS, site_in

RAY_START = "init_collective_group"
RANKS_IN = (
    (DISTRIBUTED, "_new_process_group_helper", "group_rank", "group_size"),
    (RENDEZVOUS, "_create_c10d_store", "rank", "world_size"),
    (DISTRIBUTED, "init_process_group", "rank", "world_size"),
)
"""Functions below ``init_process_group``, innermost first, with the locals that have the own rank and the size."""
PEER_IN_GROUP, PEER_IN_WORLD = ("group_src", "group_dst"), ("src", "dst", "src_rank", "dst_rank")
"""Arguments that name one member by its rank; torch sets the first two also where it is given one of the others."""


class GroupCalls:
    """The calls on process groups that threads of one process are blocked in."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self._objects = process.objects
        self.groups = ProcessGroups(process)
        self._gloo = Gloo(process.memory, self.groups.torch)

    def call_of(self, frames: Sequence[Frame], at: int, thread: int, call: SystemCall) -> GroupCall | None:
        """The call at this frame that blocks this thread; None if it is no call on a group, or unreadable."""
        site = site_in(frames[at], IN_CALLERS)
        if site is None or not site.operation:
            return None
        with contextlib.suppress(Unreadable):
            is_ray = site.library == RAY
            operation, group = self._ray(frames[: at + 1], site) if is_ray else self._torch(frames[: at + 1], site)
            if group is None:
                return None
            found = self._group_call(operation, group, self._peer(frames[at], group), thread, call)
            return replace(found, transfer=transferred(self._objects, frames[at + 1 :]))
        return None

    def work_call(self, leaf: Frame, thread: int, call: SystemCall) -> Call | None:
        """The wait of this thread for an operation that has begun before; None for any other wait.

        Its group is that of gloo's collectives in progress, if these belong to a single group.
        """
        if call.futex is None:
            return None
        if is_in(leaf, *BACKWARD):
            work = Work(is_collective=True, operation="backward")
            return (
                self._with_group_in_progress(BACKWARD_WAIT, work, thread, call) if self._gloo.is_in_backward else None
            )
        waited_for = work_of(self._objects, leaf, call.futex)
        return self._with_group_in_progress(WORK_WAIT, waited_for, thread, call) if waited_for else None

    def _with_group_in_progress(self, site: Site, work: Work, thread: int, call: SystemCall) -> Call:
        need: Need = ProcessObject()
        group = self._gloo.group if work.is_collective else None
        if group is not None:
            need = self._group_call(work.operation or "Work.wait", group, None, thread, call)
        return Call(site=site.id, frame=0, need=need)

    def _group_call(
        self, operation: str, group: ProcessGroup, peer: int | None, thread: int, call: SystemCall
    ) -> GroupCall:
        return GroupCall(
            operation=operation,
            group=group,
            peer=peer,
            mark="" if call.is_sleep else (scheduler_mark(self._process.memory.pid, thread) or "").strip(),
            fails_at=self._fails_at(call),
        )

    # ray.util.collective

    def _ray(self, frames: Sequence[Frame], site: Site) -> tuple[str, ProcessGroup | None]:
        """The operation and the group; a group that was only declared is started by the first operation on it."""
        start = _frame_in(frames, COLLECTIVE, "create_collective_group")
        if start is not None and start.has("backend"):
            rank, size = (self._number(start, name) for name in ("rank", "world_size"))
            return RAY_START, group_of_ray(self._text(start, "group_name", MAX_NAME), rank, size)
        return site.operation, self.groups.ray.by_name.get(self._text(frames[-1], "group_name", MAX_NAME))

    # torch.distributed

    def _torch(self, frames: Sequence[Frame], site: Site) -> tuple[str, ProcessGroup | None]:
        match site.operation:
            case "init_process_group":
                return site.operation, self._default_group(frames)
            case "new_group":
                return site.operation, self._new_group(frames)
            case "wait_tensor":
                return site.operation, self._gloo.group
        group = frames[-1].local("group")
        return site.operation, self.groups.torch.of_address(group) if group else None

    def _default_group(self, frames: Sequence[Frame]) -> ProcessGroup | None:
        """The default group while it is made: all ranks of the world must come."""
        rank, size = self._rank_and_size(frames)
        if rank is None or size is None or not 0 <= rank < size <= MAX_MEMBERS:
            return None
        is_text = self._objects.is_a(frames[-1].local("init_method"), "str")
        method = self._text(frames[-1], "init_method", MAX_ADDRESS) if is_text else None
        return ProcessGroup(
            library=TORCH,
            world=self.groups.torch.address_of(method),
            name="",
            rank=rank,
            ranks=tuple(range(size)),
            description=DEFAULT_GROUP,
        )

    def _rank_and_size(self, frames: Sequence[Frame]) -> tuple[int | None, int | None]:
        """From the innermost frame that has them, else from the launcher's variables; -1 means the variables."""
        for file, function, rank_name, size_name in RANKS_IN:
            frame = _frame_in(frames, file, function)
            rank, size = (self._number(frame, name) if frame else None for name in (rank_name, size_name))
            if rank is not None and size is not None and rank >= 0 and size > 0:
                return rank, size
        variables = self.groups.torch.variables
        return number_of(variables, "RANK"), number_of(variables, "WORLD_SIZE")

    def _new_group(self, frames: Sequence[Frame]) -> ProcessGroup | None:
        """A group while it is made: its members must come; all of the world where torch has a barrier for them."""
        default, made = self.groups.torch.default, _frame_in(frames, DISTRIBUTED, "_new_group_with_tag")
        if default is None or made is None:
            return None
        barrier = _frame_in(frames, DISTRIBUTED, "_store_based_barrier")
        ranks = default.ranks
        members = made.local("ranks")
        if self._objects.is_a(members, "list", "tuple"):
            ranks = tuple(int(self._objects.number(one) or 0) for one in self._objects.items(members, MAX_MEMBERS))
        if barrier and self._number(barrier, "rendezvous_count") == len(default.ranks):
            ranks = default.ranks
        if default.rank not in ranks or not set(ranks) <= set(default.ranks):
            return None
        name, description = self._text(made, "group_name", MAX_NAME), self._text(made, "group_desc", MAX_DESCRIPTION)
        return replace(default, name=name, ranks=ranks, description=description)

    # Details of a call

    def _peer(self, frame: Frame, group: ProcessGroup) -> int | None:
        """The rank in the world of the peer of a call, or of its root."""
        ranks = group.ranks
        for name in PEER_IN_GROUP:
            number = self._number(frame, name)
            if number is not None:
                return ranks[number] if 0 <= number < len(ranks) else None
        numbers = (self._number(frame, name) for name in PEER_IN_WORLD)
        return next((number for number in numbers if number in ranks), None)

    def _fails_at(self, call: SystemCall) -> float | None:
        """When the library ends the call: by its own timeout, or that of the only collective in progress."""
        if call.futex is None or call.futex_deadline is not None:
            return deadline_of(self._process.memory, call)
        return self._gloo.ends_at

    # Values of locals

    def _number(self, frame: Frame, name: str) -> int | None:
        address = frame.local(name)
        return int(self._objects.number(address) or 0) if self._objects.is_a(address, "int") else None

    def _text(self, frame: Frame, name: str, longest: int) -> str:
        """The text of a local, empty where it has none."""
        address = frame.local(name)
        return self._objects.text(address, longest) if self._objects.is_a(address, "str") else ""


def _frame_in(frames: Sequence[Frame], file: str, function: str) -> Frame | None:
    """The innermost frame in this function."""
    return next((frame for frame in frames if is_in(frame, file, function)), None)
