"""The process groups of a process, its rank in a distributed run, and what a blocked call on a group depends on.

Ray Direct Transport makes such calls, too: a thread of each actor transfers tensors, one after another, by
``__ray_send__`` on one side and ``__ray_recv__`` on the other. A method that was given such tensors waits until they
are in the actor's store. Ray 2.60; 2.46 has no such store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dstack.call_sites import DIRECT_TRANSPORT
from dstack.libraries.collective.reading import RayCalls, RayGroups
from dstack.libraries.torch.backends import Backend
from dstack.libraries.torch.groups import TorchGroups
from dstack.libraries.torch.ledgers import Ledgers, TorchLedgers
from dstack.libraries.torch.reading import TorchCalls, deadline_of
from dstack.libraries.train.reading import TrainRank, rank_in_train
from dstack.observed.calls import MEETINGS, RAY, Call, Executions, GroupCall, Holder, ProcessGroup, ProcessObject
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.named_values import number_in, number_of
from dstack.probes.node.procfs.proc import SystemCall, scheduler_mark
from dstack.probes.node.thread_stacks import IN_CALLERS, is_in, site_in


@dataclass(frozen=True)
class Memberships:
    """Groups and ranks, as :class:`dstack.observed.processes.Process` has them."""

    groups: Sequence[ProcessGroup] = ()
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None


class ProcessGroups:
    """The groups of one process in one reading of its memory."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self.torch = TorchGroups(process)
        self.ray = RayGroups(process, self.torch)

    def memberships(self) -> Memberships:
        """All groups, and the rank by torch's default group, Train or the launcher; nothing is raised."""
        train = self._train()
        default, variables = self.torch.default or (train.group if train else None), self.torch.variables
        own = [train.group] if train else []
        return Memberships(
            groups=(*self.torch.by_address.values(), *self.ray.by_name.values(), *own),
            rank=default.rank if default else number_of(variables, "RANK"),
            local_rank=train.local_rank if train else number_of(variables, "LOCAL_RANK"),
            world_size=len(default.ranks) if default else number_of(variables, "WORLD_SIZE"),
        )

    def ledgers(self, backends: Sequence[Backend]) -> Ledgers:
        """What its groups have counted and recorded; nothing is raised.

        A group of ray.util.collective that is made of one of torch has the ledger of that.
        """
        found = TorchLedgers(self._process, self.torch, backends).read()
        places, below = list(self.torch.by_address), self.ray.on_torch()
        of_torch = {places[one.group]: one for one in found.ledgers}
        own = (
            replace(of_torch[below[name]], group=len(places) + position)
            for position, name in enumerate(self.ray.by_name)
            if below.get(name) in of_torch
        )
        return replace(found, ledgers=(*found.ledgers, *own))

    def _train(self) -> TrainRank | None:
        with contextlib.suppress(UnreadableMemory):
            return rank_in_train(self._process)
        return None


PEER_IN_GROUP, PEER_IN_WORLD = ("group_src", "group_dst"), ("src", "dst", "src_rank", "dst_rank")
"""Arguments that name one member by its rank; torch sets the first two also where it is given one of the others."""


class GroupCalls:
    """The calls on process groups that threads of one process are blocked in.

    ``listeners_at`` finds the processes that listen at an address of this host, None for one of another host.
    """

    def __init__(
        self, process: PythonProcess, listeners_at: Callable[[str], tuple[Holder, ...] | None] = lambda address: None
    ) -> None:
        self._listeners_at = listeners_at
        self._objects = process.objects
        self._memory = process.memory
        self.groups = ProcessGroups(process)
        self._torch = TorchCalls(process, self.groups.torch)
        self._ray = RayCalls(process, self.groups.ray)

    def call_of(self, frames: Sequence[MemoryFrame], at: int, thread: int, call: SystemCall) -> GroupCall | None:
        """The call at this frame that blocks this thread; None if it is no call on a group, or unreadable."""
        site = site_in(frames[at], IN_CALLERS)
        if site is None or not site.operation:
            return None
        with contextlib.suppress(UnreadableMemory):
            calls = self._ray if site.library == RAY else self._torch
            operation, group = calls.operation_and_group(frames[: at + 1], site)
            if group is None:
                return None
            if calls is self._ray and not group.world:
                group = replace(group, world=self._torch.world_made(frames[: at + 1]))
            found = self._group_call(operation, group, self._peer(frames[at], group), thread, call)
            return replace(found, transfer=transferred(self._objects, frames[at + 1 :]))
        return None

    def work_call(self, leaf: MemoryFrame, thread: int, call: SystemCall) -> Call | None:
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
        meets = operation in MEETINGS and group.address
        listeners = self._listeners_at(group.address) if meets else None
        return GroupCall(
            operation=operation,
            group=group,
            peer=peer,
            mark="" if call.futex is None else (scheduler_mark(self._memory.pid, thread) or "").strip(),
            fails_at=self._fails_at(call),
            is_refused=listeners == (),
            listener=next((Holder(pid=one.pid, name=one.name) for one in listeners or ()), None),
        )

    def _peer(self, frame: MemoryFrame, group: ProcessGroup) -> int | None:
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


STORE_FILE = "/ray/experimental/rdt/rdt_store.py"
WAIT, RECEIVE, SEND = "_wait_object", "__ray_recv__", "__ray_send__"
ID_LENGTH = 56


def wait_for_tensors(
    objects: Objects,
    frames: Sequence[MemoryFrame],
    threads: Iterable[MemoryThread],
    is_user: Callable[[MemoryFrame], bool],
) -> Call | None:
    """The wait for the tensors of an object, by the thread that receives them or must end another transfer before.

    None where the thread is in no such wait, or no thread makes transfers. Raises :class:`UnreadableMemory`.
    """
    at = next((at for at, frame in enumerate(frames) if is_user(frame) or is_in(frame, STORE_FILE, WAIT)), None)
    if at is None or is_user(frames[at]):
        return None
    wanted = _object_id(objects, frames[at])
    transfers = list(_transfers(objects, threads))
    own = [thread for thread, function, object_id in transfers if (function, object_id) == (RECEIVE, wanted)]
    runners = own or [thread for thread, _, _ in transfers]
    if not runners:
        return None
    name = f"{DIRECT_TRANSPORT.name} of ObjectRef {wanted[:8]}"
    return Call(site=DIRECT_TRANSPORT.id, name=name, frame=at, need=Executions(threads=tuple(runners)))


def transferred(objects: Objects, frames: Iterable[MemoryFrame]) -> str:
    """The id of the object whose tensors a thread sends or receives by these frames, empty for none."""
    frame = next((frame for frame in frames if is_in(frame, STORE_FILE, RECEIVE, SEND)), None)
    return _object_id(objects, frame) if frame else ""


def _transfers(objects: Objects, threads: Iterable[MemoryThread]) -> Iterator[tuple[int, str, str]]:
    """The threads that are in a transfer, with its function and the id of its object."""
    for thread in threads:
        for frame in thread.frames:
            if is_in(frame, STORE_FILE, RECEIVE, SEND):
                yield thread.os_thread_id, frame.position.function, _object_id(objects, frame)


def _object_id(objects: Objects, frame: MemoryFrame) -> str:
    """The id in the local ``obj_id``."""
    object_id = objects.text(frame.local("obj_id"), ID_LENGTH + 1)
    if len(object_id) != ID_LENGTH:
        raise UnreadableMemory(f"{object_id} is not the id of an object")
    return object_id
