"""Actors and tasks of Ray's own libraries: their purpose for users, and which of them are machinery of a library.

They are recognised by names: an actor's class and name, a task's name. Ray may change these in any version, so an
unrecognised actor or task keeps its own name. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from dstack.analysis.index.sample_index import SampleIndex, is_user_code
from dstack.call_sites import kind_of, named_site
from dstack.libraries import NEVER, Recogniser, data, serve, train
from dstack.libraries.compiled_graphs import MONITOR_THREAD
from dstack.libraries.data import IN_EXECUTOR
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor, actor_of_task, producer_task_id
from dstack.model.vertex_keys import AnyKey, CoroutineKey, Key, ThreadKey
from dstack.observed.calls import Call, ChannelCall, QueuedRequest
from dstack.observed.processes import Coroutine, Thread

RAYS_OWN = (
    Recogniser(r"JobSupervisor", "job {job}", actor_name=r"_ray_internal_job_actor_(?P<job>.+)", is_machinery=True),
    Recogniser(r"_QueueActor", "ray.util.queue.Queue", which=" {id}"),
    Recogniser(r"CompiledDAG\.DAGDriverProxyActor", "proxy of a compiled graph", which=" {id}", is_machinery=True),
    Recogniser(r"PoolActor", "ray.util.multiprocessing.Pool", which=", process {id}", work=("run_batch", "batch of")),
)
RECOGNISERS = (*serve.PARTS, *data.PARTS, *train.PARTS, *train.TRIALS, *RAYS_OWN)
"""Those of each library's room, and those of Ray itself."""

OF_RAY = re.compile(r"/ray/(data|serve|train|tune)/")
PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")
"""The libraries of Ray, and others, by the paths of their files."""

STARTS = ("__init__", "initialize_and_get_metadata")
"""The methods that run constructors: Serve's replicas construct their deployments in a method of their own."""


@dataclass(frozen=True, slots=True)
class LibraryPart:
    """An actor recognised as a part of a library."""

    name: str
    which: str
    recogniser: Recogniser

    def call(self, task_name: str) -> str:
        """The name of a call: ``request to ...``, ``start of ...``, else ``METHOD of ...``."""
        owner, _, method = task_name.rpartition(".")
        pattern, words = self.recogniser.work
        if not re.fullmatch(pattern, method):
            words = "start of" if method in STARTS else f"{method} of"
        return f"{words} {data_operator(owner) or self.name}"

    def is_upkeep(self, task_name: str) -> bool:
        """Whether a call runs no user code."""
        method = task_name.rpartition(".")[2]
        return self.recogniser.is_machinery or re.fullmatch(self.recogniser.upkeep, method) is not None


def part(class_name: str, actor_name: str, actor_id: str) -> LibraryPart | None:
    """The part of a Ray library that an actor is, None for other actors."""
    for known, of_class in _with_class(class_name):
        if by_name := re.fullmatch(known.actor_name, actor_name):
            words = {"id": f"{actor_id:.8}", **of_class, **by_name.groupdict()}
            return LibraryPart(known.name.format(**words), known.which.format(**words), known)
    return None


@lru_cache(maxsize=10_000)
def _with_class(class_name: str) -> tuple[tuple[Recogniser, dict[str, str]], ...]:
    """What may recognise an actor of this class, with the groups of the pattern."""
    matches = ((known, re.fullmatch(known.class_name, class_name)) for known in RECOGNISERS)
    return tuple((known, match.groupdict()) for known, match in matches if match)


def part_of(actor: Actor | None) -> LibraryPart | None:
    """The part of a Ray library that an actor is."""
    return part(actor.class_name, actor.name, actor.actor_id) if actor else None


def groups_of_libraries(index: SampleIndex) -> dict[str, str]:
    """What libraries have made placement groups for, by id: ``Train's worker group``, ``Tune trial 1a2b3c4d``."""
    inside = ((one.placement_group_id, part_of(one)) for one in index.actors.values() if one.placement_group_id)
    found = {group_id: f"{one.name}{one.which}" for group_id, one in inside if group_id and one}
    for group in index.placement_groups.values():
        creator = part_of(index.actors.get(group.creator_actor_id or ""))
        if creator and creator.recogniser.group:
            found[group.placement_group_id] = creator.recogniser.group
    return found


def thread_name(name: str) -> str:
    """The name of a thread; for Ray Data's executors without the id of the dataset."""
    return data.EXECUTOR if name.startswith(data.EXECUTOR) else name


def polled_actors(index: SampleIndex, call: Call) -> tuple[str, ...]:
    """The ids of the actors that a library polls in a call."""
    polled = named_site(call).polls_actor
    return tuple(actor.actor_id for actor in index.actors.values() if polled and _is_part(actor, polled))


def _is_part(actor: Actor, id: str) -> bool:
    found = part_of(actor)
    return found is not None and found.recogniser.id == id and actor.state == "ALIVE"


def is_machinery_actor(actor: Actor) -> bool:
    """Whether an actor serves a library itself, and runs no user code."""
    found = part_of(actor)
    return found is not None and found.recogniser.is_machinery


def is_library_actor(actor: Actor) -> bool:
    """Whether an actor is a part of a library, which may run user code."""
    return part_of(actor) is not None


def data_operator(task_name: str) -> str | None:
    """``Data operator ReadParquet->Map(parse)`` for the name of a task of Ray Data, None for other names."""
    return f"Data operator {task_name}" if data.DATA_TASK.fullmatch(task_name) else None


def machinery(index: SampleIndex, vertices: Mapping[Key, Vertex]) -> set[Key]:
    """The vertices that are machinery of a library."""
    actors = _machinery_actors(index)
    return {key for key, vertex in vertices.items() if _is_machinery(index, actors, vertex)}


def is_passed_through(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether a task of a library's actor, without user code, only stands between the user's code and other code.

    So do all calls of actors that direct others, and of those that run user code the calls about their state. The start
    of one, or a request to it, does so where it waits for code in its own process.
    """
    task, found = index.tasks.get(vertex.task_id or ""), part_of(index.actor_of_call(vertex.task_id))
    if found is None or task is None:
        return False
    is_start = task.kind == "ACTOR_CREATION_TASK" or task.name.rpartition(".")[2] in STARTS
    if is_start and vertex.kind == "task":
        return False
    if found.recogniser.is_machinery or found.recogniser.only_directs:
        return True
    if is_start or re.fullmatch(found.recogniser.work[0], task.name.rpartition(".")[2]):
        keys = [target.vertex for target in vertex.wait.targets] if vertex.wait else []
        return any(isinstance(key, ThreadKey | CoroutineKey) and key.worker_id == vertex.worker_id for key in keys)
    return found.recogniser.calls_only_for_state or found.recogniser.work[0] != NEVER


def library_of(index: SampleIndex, vertex: Vertex) -> str:
    """The library that a vertex of machinery belongs to, as users know it: ``Ray Data's executor``, ``Ray Serve``."""
    execution = index.execution_of(vertex)
    if isinstance(execution, Thread) and execution.name.startswith(data.EXECUTOR):
        return IN_EXECUTOR.name
    found = part_of(index.actor_of_call(vertex.task_id))
    if found is not None:
        return found.name if found.recogniser.is_machinery or found.recogniser.only_directs else ""
    files = [frame.file for frame in index.frames_of_vertex(vertex) if frame.origin != "user"]
    of_ray = (match for file in files if (match := OF_RAY.search(file)))
    others = (match[1] for file in files if (match := PACKAGE.search(file)) and match[1] != "ray")
    return next((f"Ray {match[1].capitalize()}" for match in of_ray), next(others, ""))


def without_idle_machinery(index: SampleIndex, vertices: dict[Key, Vertex]) -> dict[Key, Vertex]:
    """The graph without waits of machinery that no other vertex depends on, directly or through others.

    Serve's controller, for example, always has calls that wait for updates.
    """
    found = machinery(index, vertices)
    if not found:
        return vertices
    idle = found.union(key for key in vertices if isinstance(key, AnyKey))
    idle -= _needed(vertices, vertices.keys() - idle)
    without_waits = {key: msgspec.structs.replace(vertices[key], wait=None, never=None) for key in idle}
    return {**vertices, **without_waits}


def _machinery_actors(index: SampleIndex) -> dict[str, LibraryPart]:
    parts = ((actor.actor_id, part_of(actor)) for actor in index.actors.values())
    return {key: one for key, one in parts if one and (one.recogniser.is_machinery or one.recogniser.upkeep != NEVER)}


def _is_machinery(index: SampleIndex, actors: Mapping[str, LibraryPart], vertex: Vertex) -> bool:
    """Whether a vertex is work of a library for itself, without user code.

    So is a coroutine outside of all tasks without user code, such as those in which Serve's handles wait for updates,
    and the loop of a compiled graph's actor while it waits for input, or until its output is read.
    """
    worker_id = vertex.worker_id or ""
    thread = index.thread(worker_id, vertex.os_thread_id) if vertex.coroutine_id is None else None
    if thread is not None:
        call = index.call_of(worker_id, thread)
        if thread.name == MONITOR_THREAD or (call is not None and isinstance(call.need, ChannelCall)):
            return not is_user_code(index, worker_id, thread)
    if vertex.coroutine_id is not None and vertex.task_id is None:
        coroutine = index.coroutine(worker_id, vertex.coroutine_id)
        if coroutine is None or is_client_request(index, worker_id, coroutine):
            return False
        return not is_user_code(index, worker_id, coroutine)
    if vertex.task_id is not None:
        machine = actors.get(actor_of_task(vertex.task_id) or "")
        task = index.tasks.get(vertex.task_id)
        return machine is not None and machine.is_upkeep(task.name if task else "")
    worker = index.worker_of(vertex)
    machine = actors.get(worker.actor_id or "") if worker else None
    return machine is not None and machine.recogniser.is_machinery


def is_client_request(index: SampleIndex, worker_id: str, coroutine: Coroutine) -> bool:
    """Whether a coroutine of Serve's proxy waits for the execution or the start of a client's request."""
    call = index.call_of(worker_id, coroutine)
    if call is None or kind_of(call) != "await":
        return False
    if not any(frame.function.startswith(serve.IN_PROXY) for frame in index.frames_of(worker_id, coroutine)):
        return False
    awaited = (index.coroutine(worker_id, one) for one in call.coroutines)
    calls = (index.call_of(worker_id, one) for one in awaited if one is not None)
    is_queued = any(one is not None and isinstance(one.need, QueuedRequest) for one in calls)
    return is_queued or any(producer_task_id(ref) in index.request_of_task for ref in call.refs)


def _needed(vertices: Mapping[Key, Vertex], by: Iterable[Key]) -> set[Key]:
    reached = set(by)
    ahead = list(reached)
    while ahead:
        wait = vertices[ahead.pop()].wait
        new = {target.vertex for target in wait.targets} - reached if wait else set()
        reached |= new
        ahead += new
    return reached
