"""The processes that meet to make a process group, and what keeps them apart: addresses, sizes or ranks that differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from dstack.analysis.index.sample_index import SampleIndex
from dstack.observed.calls import LOOPBACK, MEETINGS, TORCH, Call, GroupCall
from dstack.words import grouped

DEFAULT_GROUP = "default_pg"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A process that waits in a call for the other members of its world, which meet at an address."""

    worker_id: str
    job_id: str | None
    node_id: str | None
    pid: int
    call: GroupCall

    @property
    def address(self) -> str:
        """Where it looks for the others."""
        return self.call.group.address

    @property
    def place(self) -> tuple[str, str | None]:
        """The same, and its node if the address is that of any host."""
        is_own = self.address.rpartition(":")[0] in LOOPBACK
        return self.address, self.node_id if is_own else None

    @property
    def rank(self) -> int:
        """Its own rank, as it believes."""
        return self.call.group.rank

    @property
    def listens(self) -> bool:
        """Whether it listens there itself."""
        return self.call.listener is not None and self.call.listener.pid == self.pid

    @property
    def size(self) -> int:
        """The number of processes that it waits for, itself included."""
        return len(self.call.group.ranks)


def is_meeting(call: GroupCall) -> bool:
    """Whether the members of a world meet in this call, at a known address."""
    return call.operation in MEETINGS and bool(call.group.address)


def arrivals(index: SampleIndex) -> list[Arrival]:
    """The processes that wait in such calls, by address and rank."""
    own = ((key, process.pid, index.calls_in(key)) for key, process in index.processes.items())
    below = ((key, child.pid, child.calls()) for key, child in index.children())
    found = [one for place in (*own, *below) for one in _of(index, *place)]
    return sorted(found, key=lambda one: (one.place[0], one.rank, one.worker_id))


def _of(index: SampleIndex, worker_id: str, pid: int, calls: Iterable[Call]) -> Iterator[Arrival]:
    worker, actor = index.workers.get(worker_id), index.actor_of_worker(worker_id)
    job = (worker.job_id if worker else None) or (actor.job_id if actor else None)
    for need in (call.need for call in calls):
        if isinstance(need, GroupCall) and is_meeting(need):
            yield Arrival(worker_id, job, worker.node_id if worker else None, pid, need)


def are_apart(own: Arrival, rank: int, others: Iterable[Arrival]) -> bool:
    """Whether a rank that is missing where a process waits has come to another address, or was taken by another.

    ``others`` are the arrivals of its job. Either is only so if there are as many processes as ranks: else the missing
    process may still come. Processes of which two have one rank, at two addresses, are of two worlds.
    """
    alike = [one for one in others if one.size == own.size and one.call.group.library == own.call.group.library]
    here = [one for one in alike if one.place == own.place]
    if len(here) >= own.size:
        return bool(taken_twice(here))
    ranks = {one.rank for one in alike}
    return len(alike) == own.size == len(ranks) and rank in ranks


def taken_twice(arrived: Iterable[Arrival]) -> dict[int, list[Arrival]]:
    """The ranks that several processes have at one address, with these processes."""
    several = grouped(((one.place, one.rank), one) for one in arrived)
    return {rank: list(some) for (_, rank), some in several.items() if len({one.worker_id for one in some}) > 1}


def sizes_at(index: SampleIndex, address: str, arrived: Collection[Arrival]) -> dict[int, set[int]]:
    """The ranks at an address by the size of the world that they expect, also of those that have made their group."""
    found: dict[int, set[int]] = {}
    for one in arrived:
        if one.address == address:
            found.setdefault(one.size, set()).add(one.rank)
    for worker_id in index.processes:
        process = index.process(worker_id)
        for group in process.process_groups if process else ():
            is_world = group.library == TORCH and group.description == DEFAULT_GROUP
            if is_world and group.address == address:
                found.setdefault(len(group.ranks), set()).add(group.rank)
    return found
