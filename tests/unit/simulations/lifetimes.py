"""Small random clusters in which actors, placement groups and tasks hold GPUs, and that can be run to their end.

A process that is not blocked proceeds: a task ends, and a process may use all of Ray. It can call and end the actors
whose handles it has or that it finds by name, remove the placement groups of its job, and, as a driver, end with
all actors of its job. An actor that is called proceeds, too. A pending request is placed once a node has room for it.
No step prevents another step, so a process that has not proceeded when no step is possible never will.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.model.snapshot import Bundle, Job
from dstack.model.vertex_keys import Key
from tests.unit.scenes import Call, Scene, SceneProcess

JOBS = ("01000000", "02000000")
NAMESPACES = ("north", "south")

Passing = Literal["variable", "argument", "inside a value"]


@dataclass
class Process:
    """A driver, an actor's process, or a worker with its task; it runs if ``waits_for`` is None.

    An actor that runs no call is ``idle``. ``handles`` are handles of actors, by number.
    """

    kind: Literal["driver", "actor", "task"]
    job: int
    owner: int
    node: int = 0
    gpus: int = 0
    idle: bool = False
    waits_for: tuple[int, ...] | None = None
    handles: dict[int, Passing] = field(default_factory=dict)
    named_in: int | None = None
    detached: bool = False


@dataclass
class Request:
    """A task of a process that is not placed yet."""

    owner: int
    gpus: int


@dataclass
class PlacedGroup:
    """A placement group that is placed."""

    job: int
    node: int
    gpus: int
    named_in: int | None = None


@dataclass
class SimulatedCluster:
    """A cluster whose works are the tasks and calls of the processes, by process number, and then the requests."""

    nodes: list[int]
    processes: list[Process]
    requests: list[Request]
    groups: list[PlacedGroup]

    def free(self, ended: set[int], removed: set[int], placed: Iterable[tuple[int, int]] = ()) -> list[int]:
        """The free GPUs of each node."""
        free = list(self.nodes)
        for number, process in enumerate(self.processes):
            if number not in ended:
                free[process.node] -= process.gpus
        for number, group in enumerate(self.groups):
            if number not in removed:
                free[group.node] -= group.gpus
        return free

    def stuck(self) -> set[int]:
        """The works that never end, and the drivers that never proceed."""
        active = {n for n, p in enumerate(self.processes) if p.waits_for is None and not p.idle}
        done = set(active)
        ended: set[int] = set()
        removed: set[int] = set()
        while True:
            before = len(active), len(done), len(ended), len(removed)
            for number, process in enumerate(self.processes):
                if process.waits_for is not None and (not process.waits_for or done.intersection(process.waits_for)):
                    active.add(number)
                    done.add(number)
            for number in sorted(active):
                active |= set(self._called_by(number))
                ended |= set(self._ended_by(number))
                removed |= set(self._removed_by(number))
            room = max(self.free(ended, removed), default=0)
            for number, request in enumerate(self.requests, len(self.processes)):
                if request.gpus <= room:
                    done.add(number)
                    active |= set(self._reached_by_request(request))
            if before == (len(active), len(done), len(ended), len(removed)):
                break
        works = set(range(len(self.processes) + len(self.requests)))
        idle = {n for n, p in enumerate(self.processes) if p.idle}
        return works - done - idle

    def _job_of(self, request: Request) -> int:
        return self.processes[request.owner].job

    def _reached_by_request(self, request: Request) -> Iterator[int]:
        """The actors that a request can call once it runs: those in its arguments, and those of its owner's job."""
        passed = self.processes[request.owner].handles
        yield from (actor for actor, how in passed.items() if how == "argument")
        yield from self._actors_of_job(self._job_of(request))

    def _actors_of_job(self, job: int) -> Iterator[int]:
        """The actors that any process of a job can call."""
        for number, process in enumerate(self.processes):
            if process.kind == "actor" and process.named_in == job:
                yield number
        for process in self.processes:
            for actor, how in process.handles.items():
                if how == "inside a value" and self.processes[actor].job == job:
                    yield actor

    def _called_by(self, number: int) -> Iterator[int]:
        process = self.processes[number]
        yield from process.handles
        yield from (n for n, p in enumerate(self.processes) if p.kind == "actor" and p.owner == number)
        yield from self._actors_of_job(process.job)
        for other in self.processes:  # the handles in its arguments
            if process.kind == "task" and self.processes[process.owner] is other:
                yield from (actor for actor, how in other.handles.items() if how == "argument")

    def _ended_by(self, number: int) -> Iterator[int]:
        process = self.processes[number]
        yield from self._called_by(number)
        if process.kind in ("task", "actor"):
            yield number
        if process.kind == "driver":
            yield from (
                n for n, p in enumerate(self.processes) if p.kind == "actor" and p.job == process.job and not p.detached
            )

    def _removed_by(self, number: int) -> Iterator[int]:
        job = self.processes[number].job
        yield from (n for n, group in enumerate(self.groups) if job in (group.job, group.named_in))


class ClusterScene:
    """The scene of a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.scene = Scene()
        nodes = [self.scene.node(GPU=float(gpus)) for gpus in cluster.nodes]
        for node, free in zip(nodes, cluster.free(set(), set()), strict=True):
            self.scene.available[node.node_id] = {"GPU": float(free)}
        jobs = {process.job for process in cluster.processes}
        self.scene.jobs = [Job(job_id=JOBS[job], namespace=NAMESPACES[job]) for job in sorted(jobs)]
        self.procs: list[SceneProcess] = []
        self.calls: list[Call] = []
        for process in cluster.processes:
            self.procs.append(self._proc(process, nodes[process.node]))
        self.calls = [self._call(number, process) for number, process in enumerate(cluster.processes)]
        self.calls += [self._request(request) for request in cluster.requests]
        for process, proc in zip(cluster.processes, self.procs, strict=True):
            self._show(process, proc)
        for group in cluster.groups:
            self.scene.group(
                "CREATED",
                Bundle(resources={"GPU": float(group.gpus)}, node_id=nodes[group.node].node_id),
                job_id=JOBS[group.job],
                name="g" if group.named_in is not None else "",
                namespace=NAMESPACES[group.named_in or 0],
            )

    def work_numbers(self) -> dict[Key, int]:
        """The number of the work or driver of each vertex."""
        keys = {call.key: number for number, call in enumerate(self.calls)}
        return keys | {proc.key: number for number, proc in enumerate(self.procs)}

    def _proc(self, process: Process, node: object) -> SceneProcess:
        place = next(one for one in self.scene.nodes if one is node)
        if process.kind == "driver":
            proc = self.scene.driver(place)
        elif process.kind == "task":
            proc = self.scene.worker(place)
        else:
            proc = self.scene.actor(
                "Holder",
                place,
                job_id=JOBS[process.job],
                owner_id=self.procs[process.owner].worker_id,
                held={"GPU": float(process.gpus)} if process.gpus else {},
                name="n" if process.named_in is not None else "",
                namespace=NAMESPACES[process.job if process.named_in is None else process.named_in],
                is_detached=process.detached,
            )
        proc.worker = replace(proc.worker, job_id=JOBS[process.job])
        return proc

    def _call(self, number: int, process: Process) -> Call:
        by = self.procs[process.owner]
        if process.kind == "actor":
            return self.scene.call(self.procs[number], "work", by=by, job_id=JOBS[process.job])
        gpus = {"GPU": float(process.gpus)} if process.gpus else {}
        return self.scene.task("work", by=by, required_resources=gpus, job_id=JOBS[process.job])

    def _request(self, request: Request) -> Call:
        return self.scene.task(
            "request",
            by=self.procs[request.owner],
            state="PENDING_NODE_ASSIGNMENT",
            required_resources={"GPU": float(request.gpus)},
            job_id=JOBS[self.cluster.processes[request.owner].job],
        )

    def _show(self, process: Process, proc: SceneProcess) -> None:
        number = self.procs.index(proc)
        if process.kind == "driver" or process.idle:
            self.procs[process.owner].submitted.remove(self.calls[number])
        if process.idle:
            proc.idles()
        elif process.kind != "driver":
            proc.runs(self.calls[number])
        if process.waits_for is not None:
            proc.gets(*(self.calls[work] for work in process.waits_for))
        for actor, how in process.handles.items():
            proc.holds(
                self.procs[actor],
                local_uses=int(how == "variable"),
                argument_uses=int(how == "argument"),
                is_contained=how == "inside a value",
            )


@st.composite
def lifetime_clusters(draw: st.DrawFn, *, one_gpu_each: bool = False) -> SimulatedCluster:
    """One or two jobs on one or two nodes, with mostly blocked processes; requests may all be for one GPU."""
    cluster = SimulatedCluster(
        nodes=draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)), processes=[], requests=[], groups=[]
    )
    jobs = draw(st.integers(1, 2))
    for job in range(jobs):
        cluster.processes.append(Process(kind="driver", job=job, owner=job))
    for _ in range(draw(st.integers(0, 5))):
        cluster.processes.append(draw(_processes(cluster)))
    for _ in range(draw(st.integers(0, 2))):
        room = draw(_free_gpus(cluster))
        if room[1]:
            named_in = draw(st.sampled_from([None, None, *range(jobs)]))
            cluster.groups.append(PlacedGroup(draw(st.integers(0, jobs - 1)), room[0], room[1], named_in))
    owners = st.sampled_from([n for n, p in enumerate(cluster.processes) if not p.idle])
    for _ in range(draw(st.integers(1, 3))):
        cluster.requests.append(Request(draw(owners), draw(st.integers(1, 1 if one_gpu_each else max(cluster.nodes)))))
    _keep_pending_requests(cluster)
    for process in cluster.processes:
        _connect(draw, cluster, process)
    return cluster


@st.composite
def _processes(draw: st.DrawFn, cluster: SimulatedCluster) -> Process:
    owner = draw(st.sampled_from([n for n, p in enumerate(cluster.processes) if not p.idle]))
    node, gpus = draw(_free_gpus(cluster))
    process = Process(
        kind=draw(st.sampled_from(["actor", "actor", "task"])),
        job=cluster.processes[owner].job,
        owner=owner,
        node=node,
        gpus=gpus,
    )
    if process.kind == "actor":
        process.idle = draw(st.booleans())
        jobs = sum(other.kind == "driver" for other in cluster.processes)
        process.named_in = draw(st.sampled_from([None, None, None, *range(jobs)]))
        process.detached = process.named_in is not None and draw(st.booleans())
    return process


@st.composite
def _free_gpus(draw: st.DrawFn, cluster: SimulatedCluster) -> tuple[int, int]:
    """A node, and a number of its free GPUs."""
    free = cluster.free(set(), set())
    node = draw(st.integers(0, len(free) - 1))
    return node, draw(st.integers(0, free[node]))


def _keep_pending_requests(cluster: SimulatedCluster) -> None:
    """Drops the requests that fit into the free GPUs, as they would be placed at once."""
    room = max(cluster.free(set(), set()))
    cluster.requests = [request for request in cluster.requests if room < request.gpus]


def _connect(draw: st.DrawFn, cluster: SimulatedCluster, process: Process) -> None:
    """Blocks a process in most cases, and gives it handles."""
    works = [n for n, p in enumerate(cluster.processes) if p.kind != "driver" and not p.idle and p is not process]
    works += range(len(cluster.processes), len(cluster.processes) + len(cluster.requests))
    if works and not process.idle and draw(st.sampled_from([True, True, True, False])):
        process.waits_for = tuple(draw(st.lists(st.sampled_from(works), min_size=1, max_size=2, unique=True)))
    actors = [n for n, p in enumerate(cluster.processes) if p.kind == "actor" and p is not process]
    if actors:
        number = cluster.processes.index(process)
        unfinished = [p for p in cluster.processes if p is not process and p.kind != "driver" and not p.idle]
        owners = {one.owner for one in unfinished} | {one.owner for one in cluster.requests}
        passing: list[Passing] = ["variable", "inside a value", *(("argument",) if number in owners else ())]
        ways = st.sampled_from(passing)
        process.handles = draw(st.dictionaries(st.sampled_from(actors), ways, max_size=2))
        if process.idle:
            process.handles = dict.fromkeys(process.handles, "variable")
