"""Calls on process groups, the members of these groups, and what may make each of them enter a call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.graph.meetings import Arrival, are_apart, arrivals, is_meeting
from dstack.analysis.graph.producers import RELEASED
from dstack.analysis.graph.users import Users
from dstack.analysis.index.process_index import execution_key
from dstack.analysis.index.ray_libraries import part_of
from dstack.analysis.index.sample_index import SampleIndex, has_one_slot, is_blocked_loop, is_user_code
from dstack.model.diagnosis import AbsentRank, Target, Vertex
from dstack.model.snapshot import Actor, Sample, Worker, WorkerSample
from dstack.model.vertex_facts import Assumption, AssumptionKind, RankList, Subject, assumption, never, subject
from dstack.model.vertex_keys import AnyKey, CoroutineKey, ThreadKey
from dstack.observed.calls import DATA, TORCH, TRAIN, Call, GroupCall, ProcessGroup
from dstack.observed.processes import Process, Thread
from dstack.words import grouped

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


# Members


class Members:
    """The members of all groups in one sample."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._users = users
        self._places = rank_processes(graph.index)
        self._jobs: dict[str, str | None] = {}
        self._assumed: dict[tuple[GroupId, int], AssumptionKind] = {}

    def target(self, vertex: Vertex, call: GroupCall, rank: int) -> Target | None:
        """The dependency for a member's call; None if it is unknown."""
        places = self._places_of(vertex, call.group, rank)
        if not places:
            return self._unplaced(vertex, call, rank)
        place = places[0]
        if place.child_pid is not None:
            return self._graph.child(place.worker_id, place.child_pid)
        return self._in_worker(call.group, rank, place.worker_id)

    def is_ambiguous(self, vertex: Vertex, group: ProcessGroup) -> bool:
        """Whether two processes have the same rank: there are two groups of the same name."""
        return any(len(self._places_of(vertex, group, rank)) > 1 for rank in group.ranks)

    def are_apart(self, vertex: Vertex, call: GroupCall, rank: int) -> bool:
        """Whether a missing rank came to another address, or there are as many processes, of which two have one rank.

        Only new code of the job can then bring that rank, or a process that no job has started.
        """
        if not is_meeting(call) or self._places_of(vertex, call.group, rank):
            return False
        job = self.job_of(vertex.worker_id)
        own = next((one for one in self._arrivals if (one.worker_id, one.call) == (vertex.worker_id, call)), None)
        return own is not None and are_apart(own, rank, (one for one in self._arrivals if one.job_id == job))

    @cached_property
    def _arrivals(self) -> list[Arrival]:
        return arrivals(self._index)

    def assumptions(self, call: GroupCall, missing: Iterable[int]) -> Iterator[Assumption]:
        """The assumptions about members that are in no group yet."""
        several = grouped((what, rank) for rank in missing if (what := self._assumed.get((group_id(call.group), rank))))
        for what, ranks in several.items():
            yield assumption(what, RankList(ranks=tuple(ranks)), call.operation)

    def samples_of(self, worker_id: str) -> list[WorkerSample]:
        """A worker in each of the two samples."""
        return [workers[worker_id] for workers in self._workers if worker_id in workers]

    @cached_property
    def _workers(self) -> list[dict[str, WorkerSample]]:
        return [{one.worker_id: one for one in sample.workers} for sample in self._index.snapshot.samples[:2]]

    def _places_of(self, vertex: Vertex, group: ProcessGroup, rank: int) -> list[RankProcess]:
        """The processes in the waiter's job that have a rank of a group."""
        job = self.job_of(vertex.worker_id)
        places = self._places.get((group.library, group.world), {}).get(rank, ())
        return [place for place in places if None in (job, own := self.job_of(place.worker_id)) or own == job]

    def job_of(self, worker_id: str | None) -> str | None:
        """The job of a worker or of its actor, None if unknown."""
        key = worker_id or ""
        if key not in self._jobs:
            worker, actor = self._index.workers.get(key), self._index.actor_of_worker(key)
            self._jobs[key] = (worker.job_id if worker else None) or (actor.job_id if actor else None)
        return self._jobs[key]

    # Members whose process is known

    def _in_worker(self, group: ProcessGroup, rank: int, worker_id: str) -> Target:
        """What may make a member's call in its process: its only execution, or any of several."""
        sample = self._index.worker_samples.get(worker_id)
        if sample is None or sample.running_task_ids is None or not self._index.threads(worker_id):
            return self._users.unobserved(worker_id)
        if self._has_left(group, rank, worker_id):
            return self._departed(group, rank, worker_id)
        own = tuple(dict.fromkeys(self._executions(worker_id)))
        worker = self._index.workers.get(worker_id)
        callers = () if worker is None or worker.is_driver else tuple(self._callers(worker, bool(own)))
        if len(own) == 1 and not callers:
            return own[0]
        is_idle = not own and not sample.running_task_ids
        if is_idle and self._has_just_ended(worker_id):
            ended = subject("ended call", RankList(ranks=(rank,)))
            return self._graph.unknown("worker", worker_id, "moves", subject=ended)
        absent = AbsentRank(rank=rank, actor_id=worker.actor_id if worker else None, is_idle=is_idle)
        return self._helper(group, absent, (*own, *callers), worker_id)

    def _has_left(self, group: ProcessGroup, rank: int, worker_id: str) -> bool:
        process = self._index.process(worker_id)
        own = process.process_groups if process else ()
        return any(one.has_left and one.rank == rank and group_id(one) == group_id(group) for one in own)

    def _departed(self, group: ProcessGroup, rank: int, worker_id: str) -> Target:
        worker = self._index.workers.get(worker_id)
        key = AnyKey("left", (group.library, group.world, rank))
        absent = AbsentRank(rank=rank, actor_id=worker.actor_id if worker else None)
        gone = _rank(group, rank)
        why = never("ended training")
        self._graph.add(Vertex(key=key, kind="task", subject=gone, never=why, absent=absent, is_confirmed=True))
        return Target(vertex=key)

    def _helper(self, group: ProcessGroup, absent: AbsentRank, targets: Sequence[Target], worker_id: str) -> Target:
        """A helper that represents a member: any of several executions may make its call."""
        member = _rank(group, absent.rank)
        if not targets:
            return self._graph.unknown("worker", worker_id, subject=member, unobserved=True)
        key = AnyKey("rank", (group.library, group.world, absent.rank, worker_id))
        wait = waits_for("next call", *dict.fromkeys(targets))
        self._graph.add(
            Vertex(key=key, kind="task", subject=member, worker_id=worker_id or None, wait=wait, absent=absent)
        )
        return Target(vertex=key)

    def _executions(self, worker_id: str) -> Iterator[Target]:
        """The executions of a process that run a task or user code, and may act by themselves."""
        sample = self._index.worker_samples[worker_id]
        for task_id in sample.running_task_ids or ():
            yield self._graph.task(task_id)
        for thread in self._index.threads(worker_id):
            key = ThreadKey(worker_id, thread.os_thread_id)
            if key in self._graph.vertices and self._may_act(worker_id, thread):
                yield Target(vertex=key)
        for coroutine in self._index.coroutines(worker_id):
            coroutine_key = CoroutineKey(worker_id, coroutine.coroutine_id)
            if coroutine_key in self._graph.vertices and is_user_code(self._index, worker_id, coroutine):
                yield Target(vertex=coroutine_key)

    def _may_act(self, worker_id: str, thread: Thread) -> bool:
        if group_call(self._index.call_of(worker_id, thread)) is not None:
            return True
        runs_user_code = thread.role in ("task", "user") or is_user_code(self._index, worker_id, thread)
        if thread.role == "loop":
            return is_blocked_loop(self._index, worker_id, thread)
        return runs_user_code and not self._users.only_serves(worker_id, thread)

    def _callers(self, worker: Worker, has_own: bool) -> Iterator[Target]:
        """What may call into a process: nothing while its actor's only slot is occupied, or if its library calls it.

        Calls that wait for that slot begin only after the running call. Train calls its workers to ask for their
        state, while one of their threads trains.
        """
        actor = self._index.actor_of_worker(worker.worker_id)
        if has_own and (has_one_slot(self._index, worker.worker_id) or (actor and _is_called_only_for_state(actor))):
            return
        if actor is None:
            sample = self._index.worker_samples.get(worker.worker_id)
            if not (sample and sample.running_task_ids):
                yield self._graph.unknown("worker", worker.worker_id, "idle", subject=subject("idle worker"))
            return
        yield from self._users.pending_calls_in(worker.worker_id)
        yield from self._users.alternatives.without_idle(self._users.of_listed_actor(actor.actor_id))

    def _has_just_ended(self, worker_id: str) -> bool:
        """Whether an idle worker ran a task in the other sample, or between the samples."""
        samples = self.samples_of(worker_id)
        ran = {(one.running_task_ids, one.executed_tasks) for one in samples if one.running_task_ids is not None}
        return len(ran) > 1

    # Members whose process is not known

    def _unplaced(self, vertex: Vertex, call: GroupCall, rank: int) -> Target | None:
        """A member without a known process: its worker was not read, is pending, has not begun, or has died.

        No process shows which split of a dataset it reads: all users of the coordinator may read any split.
        """
        job = self.job_of(vertex.worker_id)
        if call.group.library == DATA:
            users = tuple(self._users.alternatives.without_idle(self._users.of_listed_actor(call.group.world)))
            return self._helper(call.group, AbsentRank(rank=rank), users, "")
        if unread := self._unread(job):
            return self._users.unobserved(unread)
        classes = self._classes(vertex, call.group)
        count = sum(not self._places_of(vertex, call.group, one) for one in call.group.ranks)
        pending = [task for key, task in self._index.creations.items() if self._is_like(key, classes, job)]
        if pending:
            targets = [self._graph.task(task.task_id) for task in pending]
            self._assumed[group_id(call.group), rank] = "rank not created"
            return self._helper(call.group, AbsentRank(rank=rank), targets, "")
        if call.operation in FORMING and len(late := self._in_no_group(call.group, classes, job)) == count:
            self._assumed[group_id(call.group), rank] = "rank in no group"
            return self._helper(call.group, AbsentRank(rank=rank), self._late_ranks(call.group, rank, late), "")
        dead = [actor for actor in self._index.actors.values() if _is_dead(actor, classes, job)]
        if job is not None and not dead and self.are_apart(vertex, call, rank):
            self._assumed[group_id(call.group), rank] = "rank elsewhere"
            return self._helper(call.group, AbsentRank(rank=rank), [self._users.of_job(job)], "")
        if job is None or len(dead) < count or not dead:
            return None
        absent = AbsentRank(rank=rank, actor_id=dead[0].actor_id if len(dead) == 1 else None, is_dead=True)
        return self._helper(call.group, absent, [self._users.of_job(job)], "")

    def _late_ranks(self, group: ProcessGroup, rank: int, late: Sequence[Worker]) -> list[Target]:
        """The workers that are in no group yet; the one with this rank in its environment, if there is one."""
        named = [worker for worker in late if (own := self._index.process(worker.worker_id)) and own.rank == rank]
        chosen = named if len(named) == 1 else late
        return [self._in_worker(group, rank, worker.worker_id) for worker in chosen]

    def _unread(self, job: str | None) -> str | None:
        """A worker of the job, or of an unknown job, whose process was not read."""
        for worker in self._index.present_workers:
            if self.job_of(worker.worker_id) in (job, None) and not self._index.threads(worker.worker_id):
                return worker.worker_id
        return None

    def _classes(self, vertex: Vertex, group: ProcessGroup) -> set[str]:
        """The classes of the actors that are known to be members."""
        places = (place for rank in group.ranks for place in self._places_of(vertex, group, rank))
        return {actor.class_name for place in places if (actor := self._index.actor_of_worker(place.worker_id))}

    def _is_like(self, actor_id: str, classes: set[str], job: str | None) -> bool:
        actor = self._index.actors.get(actor_id)
        return actor is not None and actor.class_name in classes and job in (None, actor.job_id)

    def _in_no_group(self, group: ProcessGroup, classes: set[str], job: str | None) -> list[Worker]:
        """The workers of actors of these classes that are in no group of the library, and create none."""
        known = (ranks for (library, _), ranks in self._places.items() if library == group.library)
        members = {place.worker_id for ranks in known for places in ranks.values() for place in places}
        return [
            worker
            for worker in self._index.present_workers
            if worker.worker_id not in members and self._is_like(worker.actor_id or "", classes, job)
        ]


def _is_called_only_for_state(actor: Actor) -> bool:
    found = part_of(actor)
    return found is not None and found.recogniser.calls_only_for_state


def _is_dead(actor: Actor, classes: set[str], job: str | None) -> bool:
    is_like = actor.class_name in classes and actor.job_id == job
    return is_like and actor.state == "DEAD" and actor.death_reason not in RELEASED


def _rank(group: ProcessGroup, rank: int) -> Subject:
    return subject("rank", RankList(ranks=(rank,), group=group), group)
