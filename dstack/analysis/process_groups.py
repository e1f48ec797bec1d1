"""What a call on a process group waits for: the calls of other members, so the executions that may make them.

A member has entered a call if any execution of the snapshot is in the same call of the group for its rank. Of the
others, those that have not entered must do so. But which of them have not cannot be seen: in a broadcast, the root may
have sent its data and gone on, and torch.distributed may begin a call without waiting for it (``async_op``). If no data
is on its way any more and the call does not end, at least one member that is outside has not entered. So a call waits
for any of these, and for each of them only where no member can enter without waiting and leave before the others.

That no data is on its way is seen: the waiter's thread does not run between two samples (``GroupCall.mark``), and its
process uses hardly any CPU time meanwhile, so its library receives and sends nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from dstack.analysis import names, placing, reduction
from dstack.analysis.gone import RELEASED
from dstack.analysis.graph import MANY, Graph
from dstack.analysis.libraries import part
from dstack.analysis.lifetimes import Lifetimes
from dstack.analysis.members import execution_of
from dstack.analysis.requirements import waits_of
from dstack.diagnosis import AbsentRank, Group, GroupWait, Target, Vertex, Wait
from dstack.model import Actor, Coroutine, GroupCall, Process, ProcessGroup, Sample, Thread, Worker, WorkerSample
from dstack.vertex_keys import AnyKey, CoroutineKey, Key, ThreadKey, UnknownKey

BY_CALLS = ("ray.train", "ray.data")
"""Libraries whose members wait by calling an actor, where a coroutine or thread stands for each of them."""
FORMING = ("init_process_group", "new_group", "init_collective_group", "create_collective_group")
"""Calls that make a group. A process makes one once, so two equal readings show one call."""
ALL_COME = (*FORMING, "monitored_barrier", "all_gather_object")
"""Calls of torch.distributed in which a member waits until all have come, as it cannot begin them without waiting."""
ALL_COME_IN_RAY = ("allreduce", "allgather", "reducescatter", "barrier", *FORMING)
"""Those of ray.util.collective (Ray 2.46 to 2.60)."""
ONE_SENDS = ("scatter", "scatter_object_list")
"""Each member receives from the root itself, not through others; so it is in gather, the other way round."""
TO_ROOT = ("gather", "gather_object")
SENDS = ("send", "send_object_list")
RECEIVES = ("recv", "recv_object_list")

QUIET_CPU_S = 0.02
QUIET_SHARE = 0.03
"""CPU time of a process in which only Ray's own threads run, between two samples: this much, and this share of it."""

STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""

NOT_TWICE = "call of another rank, which was not seen twice"

GroupId = tuple[str, str, str, tuple[int, ...]]
Calls = dict[tuple[GroupId, str], dict[int, list[GroupCall]]]
"""By group and operation, and then by rank: the calls that executions are in."""


class Place(NamedTuple):
    """The process of a rank: a worker, or a process that a worker has started."""

    worker_id: str
    child_pid: int | None = None


def add_group_waits(graph: Graph, lifetimes: Lifetimes) -> None:
    """Completes the waits in calls on process groups by the members that they depend on."""
    waiting = [vertex for vertex in graph.vertices.values() if vertex.wait and vertex.wait.of_group]
    if not waiting:
        return
    members = _Members(graph, lifetimes)
    for vertex in waiting:
        graph.add(replace(vertex, wait=members.wait_of(vertex)))


def with_proven_calls(vertices: Mapping[Key, Vertex]) -> dict[Key, Vertex]:
    """The graph in which no claim rests on a call on a process group that was not seen twice.

    One sample is no consistent cut: a rank that has left the call since looks as one that has not entered it. Where
    such a call could never end, it waits for something that was not observed instead.
    """
    found = dict(vertices)
    unproven = [key for key, vertex in vertices.items() if _is_unproven(vertex)]
    stuck = reduction.residue(waits_of(vertices.values())) if unproven else set()
    for key in stuck.intersection(unproven):
        unseen = UnknownKey("target", (key,))
        found[unseen] = Vertex(key=unseen, kind="unknown", label=NOT_TWICE, unobserved=True)
        wait = vertices[key].wait
        assert wait is not None, "only waits are unproven"
        group = Group(needs=1, targets=(Target(vertex=unseen),))
        found[key] = replace(vertices[key], wait=replace(wait, groups=(group,), of_group=None, assumed=(), if_not=()))
    return found


def _is_unproven(vertex: Vertex) -> bool:
    of_group = vertex.wait.of_group if vertex.wait else None
    return of_group is not None and bool(of_group.missing) and not vertex.stands


def matches(call: GroupCall, other: GroupCall) -> bool:
    """Whether another member's call of the same group is the same collective, or the other end of a send or recv."""
    if call.operation in SENDS or call.operation in RECEIVES:
        opposite = RECEIVES if call.operation in SENDS else SENDS
        is_for_me = other.peer in (None, call.group.rank)
        return other.operation in opposite and is_for_me and call.peer in (None, other.group.rank)
    return _kind(call) == _kind(other)


def group_id(group: ProcessGroup) -> GroupId:
    """What identifies a group in all of its members."""
    return (group.library, group.world, group.name, group.ranks)


def _group_of(call: GroupCall) -> GroupId:
    """The group of a call; one that is being made needs its members at first, and then perhaps the whole world."""
    group = replace(call.group, ranks=()) if call.operation in FORMING else call.group
    return group_id(group)


class _Meeting(NamedTuple):
    """A call on a group as one sample shows it: the ranks in it, those of which one must come, and how they may."""

    inside: tuple[int, ...]
    missing: tuple[int, ...]
    groups: tuple[Group, ...]
    doubts: tuple[str, ...]


class _Members:
    """The members of all groups in one sample, and what each of them may do."""

    def __init__(self, graph: Graph, lifetimes: Lifetimes) -> None:
        self._graph = graph
        self._seen = graph.observed
        self._lifetimes = lifetimes
        self._calls = _calls_of(graph.observed.sample)
        self._places = _places_of(graph.observed.sample)
        self._meetings: dict[object, _Meeting] = {}
        self._jobs: dict[str, str | None] = {}
        self._assumed: dict[tuple[GroupId, int], str] = {}

    def wait_of(self, vertex: Vertex) -> Wait:
        """The wait with the members that have to come, where it is known that any has to."""
        wait = vertex.wait
        assert wait is not None, "only waits are completed"
        assert wait.of_group is not None, "only those in calls on groups are"
        call = wait.of_group.call
        meeting = self._meeting(vertex, call)
        wait = replace(wait, of_group=GroupWait(call=call, inside=meeting.inside))
        proof = self._proof(vertex, call)
        if not meeting.groups or proof is None or self._may_go_on(vertex.worker_id or "", call):
            return wait
        others = tuple(group for group in wait.groups if not _is_open(group))
        of_group = GroupWait(call=call, inside=meeting.inside, missing=meeting.missing)
        found = replace(wait, groups=(*meeting.groups, *others), of_group=of_group, total=len(meeting.missing))
        doubts = tuple(dict.fromkeys((*proof, *meeting.doubts)))
        return replace(found, assumed=doubts, if_not=wait.groups) if doubts else found

    # Which members have to come

    def _meeting(self, vertex: Vertex, call: GroupCall) -> _Meeting:
        """Which members are in the call, and what those have to do that are not; the same for all that are in it."""
        of_one = call.group.rank if _is_between_two(call) or call.peer == call.group.rank else None
        key = (_group_of(call), _kind(call), call.peer, of_one, self._job_of(vertex.worker_id), call.group.ranks)
        if key not in self._meetings:
            inside = set(self._inside(call, self._calls))
            missing = self._missing(vertex, call, inside)
            groups = self._groups_for(vertex, call, missing) if missing else ()
            doubts = tuple(self._doubts(call, missing))
            self._meetings[key] = _Meeting(tuple(sorted({*inside, call.group.rank})), missing, groups, doubts)
        return self._meetings[key]

    def _inside(self, call: GroupCall, calls: Calls) -> Collection[int]:
        """The ranks of other members' calls that are the same one."""
        if not _is_between_two(call):
            return calls.get((_group_of(call), _kind(call)), {}).keys()
        opposite = RECEIVES if call.operation in SENDS else SENDS
        by_rank = [calls.get((_group_of(call), operation), {}) for operation in opposite]
        ranks = [call.peer] if call.peer is not None else [rank for ranks in by_rank for rank in ranks]
        several = ((rank, one) for ranks_ in by_rank for rank in ranks for one in ranks_.get(rank, ()))
        return {rank for rank, one in several if matches(call, one)}

    def _missing(self, vertex: Vertex, call: GroupCall, inside: Collection[int]) -> tuple[int, ...]:
        """The members of which one has to come; none where the call may end by itself, or that is not known."""
        group = call.group
        if not group.world or group.rank not in group.ranks or self._is_ambiguous(vertex, group):
            return ()
        needed = self._needed(call, inside)
        missing = tuple(rank for rank in needed if rank not in inside)
        is_enough = len(missing) < len(needed) and _is_between_two(call)
        ever = {rank for calls in self._calls_of_all for rank in self._inside(call, calls)}
        return () if is_enough or not ever.isdisjoint(missing) else missing

    def _needed(self, call: GroupCall, inside: Collection[int]) -> list[int]:
        """The other members that may be what the call waits for; none where its root has come, and gives it."""
        others = [rank for rank in call.group.ranks if rank != call.group.rank]
        if call.peer is None or call.peer == call.group.rank:
            return others
        if call.operation in (*SENDS, *RECEIVES, *ONE_SENDS, *TO_ROOT):
            return [call.peer]
        return [] if call.peer in inside else others

    @cached_property
    def _calls_of_all(self) -> list[Calls]:
        """The calls on groups that each sample and reading shows."""
        snapshot = self._seen.snapshot
        return [_calls_of(sample) for sample in (*snapshot.samples[:2], *snapshot.readings)]

    @cached_property
    def _shown(self) -> list[dict[str, WorkerSample]]:
        """The workers by id, in each of the two samples."""
        return [{one.worker_id: one for one in sample.workers} for sample in self._seen.snapshot.samples[:2]]

    def _may_go_on(self, worker_id: str, call: GroupCall) -> bool:
        """Whether a process may end its call by itself: it was stopped, or used CPU time between the samples.

        Its library does while it sends or receives; no data are moved where a group is made, but some poll then.
        """
        shown = [workers[worker_id].process for workers in self._shown if worker_id in workers]
        processes = [process for process in shown if process is not None]
        if any(process.state in STOPPED for process in processes):
            return True
        if len(processes) < 2 or call.operation in FORMING:
            return False
        first, second = self._seen.snapshot.samples[:2]
        between_s = max(0.0, second.ended_s - first.began_s)
        return processes[1].cpu_s - processes[0].cpu_s > QUIET_CPU_S + QUIET_SHARE * between_s

    def _is_ambiguous(self, vertex: Vertex, group: ProcessGroup) -> bool:
        """Whether two processes have one rank: these are two groups of the same name."""
        places = self._places.get((group.library, group.world), {})
        return any(len(self._of_job(places.get(rank, ()), vertex)) > 1 for rank in group.ranks)

    def _of_job(self, places: Iterable[Place], vertex: Vertex) -> list[Place]:
        job = self._job_of(vertex.worker_id)
        return [place for place in places if None in (job, own := self._job_of(place.worker_id)) or own == job]

    def _job_of(self, worker_id: str | None) -> str | None:
        key = worker_id or ""
        if key not in self._jobs:
            worker = self._seen.workers.get(key)
            actor = self._seen.actors.get((worker.actor_id if worker else None) or "")
            self._jobs[key] = (worker.job_id if worker else None) or (actor.job_id if actor else None)
        return self._jobs[key]

    def _proof(self, vertex: Vertex, call: GroupCall) -> tuple[str, ...] | None:
        """What is assumed to take equal readings for one call, nothing where they are; None where they are not equal.

        A call without a mark is one that polls; a task that is a coroutine makes one call, and so does one of Train or
        Data that a rank has called for it.
        """
        execution = execution_of(self._seen, vertex)
        is_task = isinstance(execution, Coroutine) and execution.is_task
        if call.mark or call.operation in FORMING or is_task or (call.group.library in BY_CALLS and vertex.task_id):
            return ()
        samples = (*self._seen.snapshot.samples[:2], *self._seen.snapshot.readings)
        if any(
            shown is None or replace(shown, fails_at=call.fails_at) != call for shown in _calls_shown(samples, vertex)
        ):
            return None
        return (f"rank {call.group.rank} was in one and the same {call.operation} in all samples",)

    # What each of them waits for

    def _groups_for(self, vertex: Vertex, call: GroupCall, missing: tuple[int, ...]) -> tuple[Group, ...]:
        """Each of the missing members, or any of them; nothing where one may come that is not known."""
        found = [self._member(vertex, call, rank) for rank in missing]
        known = tuple(dict.fromkeys(target for target in found if target is not None))
        is_each = _is_for_all(call)
        if not known or (not is_each and None in found):
            return ()
        groups = tuple(Group(needs=1, targets=(one,)) for one in known) if is_each else (Group(needs=1, targets=known),)
        if len(known) <= MANY:
            return groups
        whole = AnyKey("ranks", (*group_id(call.group), call.operation, missing))
        wait = Wait(kind="ranks", groups=groups, total=len(known))
        label = f"call of {names.ranks(missing)} in {names.process_group(call.group)}"
        self._graph.add(Vertex(key=whole, kind="task", label=label, wait=wait))
        return (Group(needs=1, targets=(Target(vertex=whole),)),)

    def _member(self, vertex: Vertex, call: GroupCall, rank: int) -> Target | None:
        """What a member's call depends on; None where that is not known."""
        places = self._of_job(self._places.get((call.group.library, call.group.world), {}).get(rank, ()), vertex)
        if not places:
            return self._unplaced(vertex, call, rank)
        place = places[0]
        if place.child_pid is not None:
            return self._graph.child(place.worker_id, place.child_pid)
        return self._in_worker(call.group, rank, place.worker_id)

    def _in_worker(self, group: ProcessGroup, rank: int, worker_id: str) -> Target:
        """What may make a member's call in its process: the one execution that runs there, or any of several."""
        sample = self._seen.seen.get(worker_id)
        if sample is None or sample.running_task_ids is None or not self._seen.threads(worker_id):
            return self._lifetimes.unobserved(worker_id)
        if self._has_left(group, rank, worker_id):
            return self._left(group, rank, worker_id)
        own = tuple(dict.fromkeys(self._executions(worker_id)))
        worker = self._seen.workers.get(worker_id)
        callers = () if worker is None or worker.is_driver else tuple(self._callers(worker, bool(own)))
        if len(own) == 1 and not callers:
            return own[0]
        is_idle = not own and not sample.running_task_ids
        if is_idle and self._has_just_ended(worker_id):
            return self._graph.unknown("worker", worker_id, "moves", label=f"rank {rank}, which has just ended a call")
        absent = AbsentRank(rank=rank, actor_id=worker.actor_id if worker else None, is_idle=is_idle)
        return self._helper(group, absent, (*own, *callers), worker_id)

    def _has_left(self, group: ProcessGroup, rank: int, worker_id: str) -> bool:
        process = self._seen.process(worker_id)
        own = process.process_groups if process else ()
        return any(one.has_left and one.rank == rank and group_id(one) == group_id(group) for one in own)

    def _left(self, group: ProcessGroup, rank: int, worker_id: str) -> Target:
        """A member that makes no more calls."""
        worker = self._seen.workers.get(worker_id)
        key = AnyKey("left", (group.library, group.world, rank))
        label = f"rank {rank} of {names.process_group(group)}"
        absent = AbsentRank(rank=rank, actor_id=worker.actor_id if worker else None)
        never = "makes no more calls: its training function has ended"
        self._graph.add(
            Vertex(key=key, kind="task", label=label, never=never, never_kind="orphaned", absent=absent, stands=True)
        )
        return Target(vertex=key)

    def _helper(self, group: ProcessGroup, absent: AbsentRank, targets: Sequence[Target], worker_id: str) -> Target:
        """A vertex that stands for a member, which any of several executions may bring to the call."""
        label = f"{names.ranks([absent.rank], group)} of {names.process_group(group)}"
        if not targets:
            return self._graph.unknown("worker", worker_id, label=label, unobserved=True)
        key = AnyKey("rank", (group.library, group.world, absent.rank, worker_id))
        wait = Wait(
            kind="next call", groups=(Group(needs=1, targets=tuple(dict.fromkeys(targets))),), total=len(targets)
        )
        self._graph.add(
            Vertex(key=key, kind="task", label=label, worker_id=worker_id or None, wait=wait, absent=absent)
        )
        return Target(vertex=key)

    def _executions(self, worker_id: str) -> Iterator[Target]:
        """What runs code of a task or of the user in a process, as far as it may do something of its own accord."""
        sample = self._seen.seen[worker_id]
        for task_id in sample.running_task_ids or ():
            yield Target(vertex=placing.key_of_task(self._seen, task_id))
        for thread in self._seen.threads(worker_id):
            key = ThreadKey(worker_id, thread.os_thread_id)
            if key in self._graph.vertices and self._may_act(worker_id, thread):
                yield Target(vertex=key)
        for coroutine in self._seen.coroutines(worker_id):
            coroutine_key = CoroutineKey(worker_id, coroutine.coroutine_id)
            if coroutine_key in self._graph.vertices and placing.is_users(self._seen, coroutine):
                yield Target(vertex=coroutine_key)

    def _may_act(self, worker_id: str, thread: Thread) -> bool:
        if thread.call is not None and thread.call.of_group is not None:
            return True
        is_users = thread.role in ("task", "user") or placing.is_users(self._seen, thread)
        if thread.role == "loop":
            return placing.is_blocked_loop(self._seen, thread)
        return is_users and not self._lifetimes.only_serves(worker_id, thread)

    def _callers(self, worker: Worker, has_own: bool) -> Iterator[Target]:
        """What may have a process run more: none while its actor's only slot is taken, or where its library calls it.

        Calls that wait for that slot begin only after the call that runs there. Train calls its workers to ask for
        their state, while a thread of their own trains.
        """
        actor = self._seen.actors.get(worker.actor_id or "")
        if has_own and (placing.has_one_slot(self._seen, worker.worker_id) or (actor and _is_of_train(actor))):
            return
        if actor is None:
            sample = self._seen.seen.get(worker.worker_id)
            if not (sample and sample.running_task_ids):
                label = "worker that runs nothing, and may be given a task or be ended"
                yield self._graph.unknown("worker", worker.worker_id, "idle", label=label)
            return
        yield from self._lifetimes.pending_calls_in(worker.worker_id)
        yield from self._lifetimes.awake(self._lifetimes.users_of_actor(actor.actor_id))

    def _has_just_ended(self, worker_id: str) -> bool:
        """Whether a worker that runs nothing ran something in the other sample, or in between."""
        shown = [workers[worker_id] for workers in self._shown if worker_id in workers]
        ran = {(one.running_task_ids, one.executed_tasks) for one in shown if one.running_task_ids is not None}
        return len(ran) > 1

    # Members whose process is not known

    def _unplaced(self, vertex: Vertex, call: GroupCall, rank: int) -> Target | None:
        """A member that no process has: its worker was not read, is to be created, has not yet begun, or has died.

        Of a dataset's splits no process shows which it reads: whatever can call their coordinator may read it.
        """
        job = self._job_of(vertex.worker_id)
        if call.group.library == "ray.data":
            users = tuple(self._lifetimes.awake(self._lifetimes.users_of_actor(call.group.world)))
            return self._helper(call.group, AbsentRank(rank=rank), users, "")
        if unread := self._unread(job):
            return self._lifetimes.unobserved(unread)
        classes = self._classes(vertex, call.group)
        count = len(self._unplaced_ranks(vertex, call.group))
        pending = [task for key, task in self._seen.creations.items() if self._is_like(key, classes, job)]
        if pending:
            targets = [Target(vertex=placing.key_of_task(self._seen, task.task_id)) for task in pending]
            self._assumed[group_id(call.group), rank] = (
                "will come from an actor of the same class that is to be created"
            )
            return self._helper(call.group, AbsentRank(rank=rank), targets, "")
        if call.operation in FORMING and len(late := self._not_yet(call.group, classes, job)) == count:
            self._assumed[group_id(call.group), rank] = (
                "will come from an actor of the same class that is in no group yet"
            )
            return self._not_begun(call.group, rank, late)
        dead = [actor for actor in self._seen.actors.values() if _is_dead(actor, classes, job)]
        if job is None or len(dead) < count or not dead:
            return None
        absent = AbsentRank(rank=rank, actor_id=dead[0].actor_id if len(dead) == 1 else None, is_dead=True)
        return self._helper(call.group, absent, [self._lifetimes.code_of_job(job)], "")

    def _not_begun(self, group: ProcessGroup, rank: int, late: Sequence[Worker]) -> Target:
        """One of those that are in no group yet, by the rank that its environment gives it if there is one."""
        several = self._late_ranks(group, rank, late)
        return self._helper(group, AbsentRank(rank=rank), several, "")

    def _late_ranks(self, group: ProcessGroup, rank: int, late: Sequence[Worker]) -> list[Target]:
        named = [worker for worker in late if (own := self._seen.process(worker.worker_id)) and own.rank == rank]
        chosen = named if len(named) == 1 else late
        return [self._in_worker(group, rank, worker.worker_id) for worker in chosen]

    def _doubts(self, call: GroupCall, missing: Iterable[int]) -> Iterator[str]:
        """What is assumed of members that are in no group yet."""
        several: dict[str, list[int]] = defaultdict(list)
        for rank in missing:
            if text := self._assumed.get((group_id(call.group), rank)):
                several[text].append(rank)
        yield from (f"{names.ranks(ranks)} of {call.operation} {text}" for text, ranks in several.items())

    def _unplaced_ranks(self, vertex: Vertex, group: ProcessGroup) -> list[int]:
        places = self._places.get((group.library, group.world), {})
        return [rank for rank in group.ranks if not self._of_job(places.get(rank, ()), vertex)]

    def _unread(self, job: str | None) -> str | None:
        """A worker of the job, or of none that is known, of which nothing was read."""
        for worker in self._seen.present_workers:
            if self._job_of(worker.worker_id) in (job, None) and not self._seen.threads(worker.worker_id):
                return worker.worker_id
        return None

    def _classes(self, vertex: Vertex, group: ProcessGroup) -> set[str]:
        """The classes of the actors that are members."""
        places = self._places.get((group.library, group.world), {})
        workers = {place.worker_id for rank in group.ranks for place in self._of_job(places.get(rank, ()), vertex)}
        known = (self._seen.workers.get(worker_id) for worker_id in workers)
        actors = (self._seen.actors.get(worker.actor_id or "") for worker in known if worker)
        return {actor.class_name for actor in actors if actor}

    def _is_like(self, actor_id: str, classes: set[str], job: str | None) -> bool:
        actor = self._seen.actors.get(actor_id)
        return actor is not None and actor.class_name in classes and job in (None, actor.job_id)

    def _not_yet(self, group: ProcessGroup, classes: set[str], job: str | None) -> list[Worker]:
        """The workers of actors of these classes that are in no group of the library, nor making one."""
        members = {
            place.worker_id
            for (library, _), ranks in self._places.items()
            for place in _all(ranks)
            if library == group.library
        }
        return [
            worker
            for worker in self._seen.present_workers
            if worker.worker_id not in members and self._is_like(worker.actor_id or "", classes, job)
        ]


def _is_for_all(call: GroupCall) -> bool:
    if call.group.library in BY_CALLS:
        return True
    return call.operation in (ALL_COME if call.group.library == "torch.distributed" else ALL_COME_IN_RAY)


def _kind(call: GroupCall) -> str:
    """What is the same in all members' calls; Train's and Data's meet in one actor, which only counts them."""
    return "" if call.group.library in BY_CALLS else call.operation


def _is_between_two(call: GroupCall) -> bool:
    """Whether the call ends once one other member has made the opposite one."""
    return call.operation in SENDS or call.operation in RECEIVES


def _is_of_train(actor: Actor) -> bool:
    found = part(actor.class_name, actor.name, actor.actor_id)
    return found is not None and found.name == "Train worker"


def _is_dead(actor: Actor, classes: set[str], job: str | None) -> bool:
    is_like = actor.class_name in classes and actor.job_id == job
    return is_like and actor.state == "DEAD" and actor.death_reason not in RELEASED


def _is_open(group: Group) -> bool:
    return any(isinstance(target.vertex, UnknownKey) and target.vertex.what == "other side" for target in group.targets)


def _all(places: Mapping[int, set[Place]]) -> Iterator[Place]:
    return (place for several in places.values() for place in several)


def _processes(workers: Iterable[WorkerSample]) -> Iterator[tuple[Place, Process]]:
    """The processes of workers and those that they have started."""
    for worker in workers:
        if worker.process is not None:
            yield Place(worker.worker_id), worker.process
            yield from ((Place(worker.worker_id, child.pid), child) for child in worker.process.children)


def _calls_of(sample: Sample) -> Calls:
    """The calls on groups that executions are blocked in."""
    found: Calls = defaultdict(lambda: defaultdict(list))
    for _, process in _processes(sample.workers):
        for call in process.calls():
            if call.of_group is not None:
                found[_group_of(call.of_group), _kind(call.of_group)][call.of_group.group.rank].append(call.of_group)
    return found


def _places_of(sample: Sample) -> dict[tuple[str, str], dict[int, set[Place]]]:
    """By library and world: the processes that have each rank, as they say, or make a group with it now."""
    found: dict[tuple[str, str], dict[int, set[Place]]] = defaultdict(lambda: defaultdict(set))
    for worker in sample.workers:
        claims = {process.pid: _claims(process) for _, process in _processes([worker])}
        for place, process in _processes([worker]):
            inherited = claims.get(process.parent_pid or 0, set()) if place.child_pid is not None else set()
            for library, world, rank in claims[process.pid] - inherited:
                found[library, world][rank].add(place)
    return found


def _claims(process: Process) -> set[tuple[str, str, int]]:
    """The ranks that a process has, each in a world; a process that was forked from it has them in its memory, too."""
    calls = (call.of_group.group for call in process.calls() if call.of_group)
    own = (*process.process_groups, *(group for group in calls if group.library not in BY_CALLS))
    return {(group.library, group.world, group.rank) for group in own}


def _calls_shown(samples: Iterable[Sample], vertex: Vertex) -> Iterator[GroupCall | None]:
    """The call on a group that a vertex is in, in each sample that shows it; None where it is in none."""
    for sample in samples:
        for worker in sample.workers:
            if worker.worker_id == vertex.worker_id and worker.process is not None:
                own = (one for one in worker.process.executions() if _key_of(worker.worker_id, one) == vertex.key)
                yield from (one.call.of_group if one.call else None for one in own)


def _key_of(worker_id: str, one: Thread | Coroutine) -> Key:
    if isinstance(one, Coroutine):
        return CoroutineKey(worker_id, one.coroutine_id)
    return ThreadKey(worker_id, one.os_thread_id)
