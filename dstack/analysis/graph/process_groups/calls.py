"""Calls on process groups in a sample: which are the same call, and which process has which rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dstack.analysis.index.processes import execution_key
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Sample
from dstack.observed.calls import DATA, TORCH, TRAIN, Call, GroupCall, ProcessGroup
from dstack.observed.processes import Process

BY_CALLS = (TRAIN, DATA)
"""Libraries whose members wait by calling an actor, in which a coroutine or thread represents each of them."""
FORMING = ("init_process_group", "new_group", "init_collective_group", "create_collective_group")
"""Calls that create a group. A process creates a group once, so two equal readings show one call."""
ALL_COME = (*FORMING, "monitored_barrier", "all_gather_object")
"""Calls of torch.distributed in which each member waits for all others: it cannot begin them without waiting."""
ALL_COME_IN_RAY = ("allreduce", "allgather", "reducescatter", "barrier", *FORMING)
"""The same calls of ray.util.collective (Ray 2.46 to 2.60)."""
SENDS = ("send", "send_object_list")
RECEIVES = ("recv", "recv_object_list")
BETWEEN_TWO = (*SENDS, *RECEIVES)
UNNAMED = ("Work.wait", "backward", "wait_tensor")
"""Waits for a collective that began earlier, which may be any collective of its group."""

GroupId = tuple[str, str, str, tuple[int, ...]]
Calls = dict[tuple[GroupId, str], dict[int, list[GroupCall]]]
"""By group and operation, and then by rank: the calls that executions are in."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of a rank: a worker, or a child process of it."""

    worker_id: str
    child_pid: int | None = None


def group_id(group: ProcessGroup) -> GroupId:
    """The identity of a group, the same in all of its members."""
    return (group.library, group.world, group.name, group.ranks)


def group_of(call: GroupCall) -> GroupId:
    """The group of a call; without ranks while it is created, since these may be its members or the world."""
    group = replace(call.group, ranks=()) if call.operation in FORMING else call.group
    return group_id(group)


def is_for_all(call: GroupCall) -> bool:
    """Whether a member waits in the call until all others have entered it."""
    if call.group.library in BY_CALLS:
        return True
    return call.operation in (ALL_COME if call.group.library == TORCH else ALL_COME_IN_RAY)


def kind_of(call: GroupCall) -> str:
    """The part of the operation that all members' calls share; the actors of Train and Data only count calls."""
    return "" if call.group.library in BY_CALLS else call.operation


def ranks_in_same(call: GroupCall, calls: Calls) -> set[int]:
    """The ranks of other members that are in the same call, or may be because their operation is unknown."""
    group, kind = group_of(call), kind_of(call)
    if is_between_two(call):
        by_rank = [calls.get((group, operation), {}) for operation in (RECEIVES if call.operation in SENDS else SENDS)]
        others = [(rank, one) for ranks in by_rank for rank, several in ranks.items() for one in several]
        return {rank for rank, one in others if one.peer in (None, call.group.rank) and call.peer in (None, rank)}
    kinds = {one for of_group, one in calls if of_group == group and one not in BETWEEN_TWO}
    same = kinds if kind in UNNAMED else kinds.intersection((kind, *UNNAMED))
    return {rank for one in same for rank in calls[group, one]}


def is_between_two(call: GroupCall) -> bool:
    """Whether the call ends as soon as one other member makes the opposite call."""
    return call.operation in BETWEEN_TWO


def calls_of(index: SampleIndex) -> Calls:
    """The calls on groups in which executions are blocked."""
    own = (call for worker_id in index.processes for call in index.calls_in(worker_id))
    return _by_group((*own, *(call for _, child in index.children() for call in child.calls())))


def calls_in(sample: Sample) -> Calls:
    """The same in a sample as it was read."""
    processes = (worker.process for worker in sample.workers if worker.process is not None)
    return _by_group(call for one in processes for process in one.family for call in process.calls())


def _by_group(calls: Iterable[Call]) -> Calls:
    found: Calls = defaultdict(lambda: defaultdict(list))
    for call in calls:
        if isinstance(of_group := call.need, GroupCall):
            found[group_of(of_group), kind_of(of_group)][of_group.group.rank].append(of_group)
    return found


def rank_processes(index: SampleIndex) -> dict[tuple[str, str], dict[int, set[RankProcess]]]:
    """By library and world: the processes that have each rank, or are creating a group with it."""
    found: dict[tuple[str, str], dict[int, set[RankProcess]]] = defaultdict(lambda: defaultdict(set))
    for worker_id, process in index.processes.items():
        claims = {process.pid: _claims(process, index.calls_in(worker_id))}
        claims |= {child.pid: _claims(child, child.calls()) for child in process.children}
        for library, world, rank in claims[process.pid]:
            found[library, world][rank].add(RankProcess(worker_id))
        for child in process.children:
            for library, world, rank in claims[child.pid] - claims.get(child.parent_pid or 0, set()):
                found[library, world][rank].add(RankProcess(worker_id, child.pid))
    return found


def _claims(process: Process, calls: Iterable[Call]) -> set[tuple[str, str, int]]:
    """The ranks of a process, each with its world; a forked child has those of its parent in its memory, too."""
    of_calls = (call.need.group for call in calls if isinstance(call.need, GroupCall))
    own = (*process.process_groups, *(group for group in of_calls if group.library not in BY_CALLS))
    return {(group.library, group.world, group.rank) for group in own}


def calls_shown(index: SampleIndex, vertex: Vertex) -> Iterator[GroupCall | None]:
    """The call on a group of a vertex in each sample and reading that has the vertex; None for those without it.

    A loop that only polls is in its call in both samples, also if one shows it between two polls.
    """
    snapshot, poll = index.snapshot, index.known.polls.get(vertex.key)
    for sample in (*snapshot.samples[:2], *snapshot.readings):
        shown = poll.call if poll and sample not in snapshot.readings else None
        for worker in sample.workers:
            if worker.worker_id == vertex.worker_id and worker.process is not None:
                executions = worker.process.executions()
                own = (one for one in executions if execution_key(worker.worker_id, one) == vertex.key)
                yield from (group_call(shown or one.call) for one in own)


def group_call(call: Call | None) -> GroupCall | None:
    """What a call on a process group needs, None for any other call."""
    return call.need if call is not None and isinstance(call.need, GroupCall) else None
