"""What a blocked call on a process group depends on, by the frames of its thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from dstack.libraries.collective.reading import RayCalls
from dstack.libraries.torch.calls import TorchCalls
from dstack.libraries.torch.gloo import deadline_of
from dstack.observed.calls import RAY, Call, GroupCall, ProcessGroup, ProcessObject
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.process_groups.locals_of_calls import number_in
from dstack.probes.node.process_groups.memberships import ProcessGroups
from dstack.probes.node.procfs.proc import SystemCall, scheduler_mark
from dstack.probes.node.ray.tensor_transfers import transferred
from dstack.probes.node.waits.known_sites import IN_CALLERS, site_in

PEER_IN_GROUP, PEER_IN_WORLD = ("group_src", "group_dst"), ("src", "dst", "src_rank", "dst_rank")
"""Arguments that name one member by its rank; torch sets the first two also where it is given one of the others."""


class GroupCalls:
    """The calls on process groups that threads of one process are blocked in.

    ``is_refused`` tests whether an address is one of this host, and nothing listens there.
    """

    def __init__(self, process: PythonProcess, is_refused: Callable[[str], bool] = lambda address: False) -> None:
        self._is_refused = is_refused
        self._objects = process.objects
        self._memory = process.memory
        self.groups = ProcessGroups(process)
        self._torch = TorchCalls(process, self.groups.torch)
        self._ray = RayCalls(process, self.groups.ray)

    def call_of(self, frames: Sequence[Frame], at: int, thread: int, call: SystemCall) -> GroupCall | None:
        """The call at this frame that blocks this thread; None if it is no call on a group, or unreadable."""
        site = site_in(frames[at], IN_CALLERS)
        if site is None or not site.operation:
            return None
        with contextlib.suppress(Unreadable):
            calls = self._ray if site.library == RAY else self._torch
            operation, group = calls.operation_and_group(frames[: at + 1], site)
            if group is None:
                return None
            found = self._group_call(operation, group, self._peer(frames[at], group), thread, call)
            return replace(found, transfer=transferred(self._objects, frames[at + 1 :]))
        return None

    def work_call(self, leaf: Frame, thread: int, call: SystemCall) -> Call | None:
        """The wait of this thread for an operation that has begun before; None for any other wait."""
        begun = self._torch.begun(leaf, call)
        if begun is None:
            return None
        if begun.group is None:
            return Call(site=begun.site.id, frame=0, need=ProcessObject())
        need = self._group_call(begun.operation, begun.group, None, thread, call)
        return Call(site=begun.site.id, frame=0, need=need)

    def _group_call(
        self, operation: str, group: ProcessGroup, peer: int | None, thread: int, call: SystemCall
    ) -> GroupCall:
        return GroupCall(
            operation=operation,
            group=group,
            peer=peer,
            mark="" if call.futex is None else (scheduler_mark(self._memory.pid, thread) or "").strip(),
            fails_at=self._fails_at(call),
            is_refused=bool(group.address) and not group.name and self._is_refused(group.address),
        )

    def _peer(self, frame: Frame, group: ProcessGroup) -> int | None:
        """The rank in the world of the peer of a call, or of its root."""
        ranks = group.ranks
        for name in PEER_IN_GROUP:
            number = number_in(self._objects, frame, name)
            if number is not None:
                return ranks[number] if 0 <= number < len(ranks) else None
        numbers = (number_in(self._objects, frame, name) for name in PEER_IN_WORLD)
        return next((number for number in numbers if number in ranks), None)

    def _fails_at(self, call: SystemCall) -> float | None:
        """When the library ends the call: by its own timeout, or that of the only collective in progress."""
        if call.futex is None or call.futex_deadline is not None:
            return deadline_of(self._memory, call)
        return self._torch.gloo.ends_at
