"""Ray's own libraries: what their actors and tasks are to those who use them, and which of them are mere machinery.

They are recognised by names: an actor's class and name, a task's name. Those are Ray's own and may change with any
version, so what is not recognised is called as everything else is. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.task_assignment import is_user_code
from dstack.diagnosis import Vertex
from dstack.model import Actor, Coroutine, actor_of_task, producer_task_id
from dstack.vertex_keys import AnyKey, Key

SHORT = 8
GRAPH_MONITOR = "CompiledGraphMonitorThread"
"""The thread of a compiled graph's driver that waits for the end of the graph's loops; Ray 2.46 and 2.60."""
NEVER = r"(?!)"
"""A pattern that matches nothing."""


class Recogniser(NamedTuple):
    """How actors of a library are recognised, by patterns, and what they are to its user.

    ``name`` and ``which``, which tells it from others of that name, are formatted with the groups of the patterns and
    the actor's short ``id``. ``work`` are the methods that do what the user asked for, in words.
    An actor that ``is_machinery`` runs no code of the user; of others, the calls in ``upkeep`` do not. Only actors are
    called so whose names are Ray's, too: a class of the user's may be called the same.
    """

    class_name: str
    name: str
    which: str = ""
    actor_name: str = r".*"
    work: tuple[str, str] = (NEVER, "")
    upkeep: str = NEVER
    is_machinery: bool = False


RECOGNISERS = (
    # Serve
    Recogniser(
        r"ServeReplica:(?P<app>[^:]*):(?P<deployment>.+)",
        "Serve deployment {deployment} of app {app}",
        which=", replica {replica}",
        actor_name=r"SERVE_REPLICA::.*#(?P<replica>[^#]+)",
        work=(r"handle_request\w*", "request to"),
        upkeep=r"check_health|record_routing_stats|get_num_ongoing_requests|push_proxy_handle|is_allocated|"
        r"was_initialized|list_outbound_deployments|reserve_slot|release_slot|perform_graceful_shutdown",
    ),
    Recogniser(r"ServeController", "Serve's controller", actor_name=r"SERVE_CONTROLLER_ACTOR.*", is_machinery=True),
    Recogniser(r"ProxyActor", "Serve's proxy", actor_name=r"SERVE_PROXY_ACTOR.*", is_machinery=True),
    # Data; up to 2.46 the class of a map worker does not name its operator, but its tasks do
    Recogniser(
        r"MapWorker\((?P<operator>.+)\)", "Data operator {operator}", which=", worker {id}", work=("submit", "task of")
    ),
    Recogniser(r"_MapWorker", "Data operator", which=", worker {id}", work=("submit", "task of")),
    Recogniser(r"HashShuffleAggregator", "Data's shuffle", which=", aggregator {id}"),
    Recogniser(r"SplitCoordinator", "Data's streaming_split", which=" {id}"),
    Recogniser(r"_StatsActor", "Data's statistics", actor_name=r"datasets_stats_actor", is_machinery=True),
    Recogniser(
        r"AutoscalingRequester|_AutoscalingCoordinatorActor",
        "Data's autoscaling",
        actor_name=r"AutoscalingRequester.*|AutoscalingCoordinator",
        is_machinery=True,
    ),
    Recogniser(
        r"ActorLocationTracker", "Data's list of its workers", actor_name=r"ActorLocationTracker", is_machinery=True
    ),
    # Train and Tune
    Recogniser(r"TrainController", "Train's controller", which=" {id}"),
    Recogniser(r"RayTrainWorker|_WrappedExecutable", "Train worker", which=" {id}"),
    Recogniser(r"SynchronizationActor", "Train's barrier", which=" {id}"),
    Recogniser(r"PlacementGroupCleaner", "Train's placement-group cleaner", which=" {id}", is_machinery=True),
    Recogniser(r"PreemptionWatcher", "Train's preemption watcher", which=" {id}", is_machinery=True),
    Recogniser(
        r"_UsageCollectionActor",
        "Data's usage statistics",
        actor_name=r"DataUsageCollectionActor.*|.*Usage.*",
        is_machinery=True,
    ),
    Recogniser(r"ImplicitFunc", "Tune trial", which=" {id}", work=("train", "step of")),
    # Others
    Recogniser(r"JobSupervisor", "job {job}", actor_name=r"_ray_internal_job_actor_(?P<job>.+)", is_machinery=True),
    Recogniser(r"_QueueActor", "ray.util.queue.Queue", which=" {id}"),
    Recogniser(r"PoolActor", "ray.util.multiprocessing.Pool", which=", process {id}", work=("run_batch", "batch of")),
)

EXECUTOR = "StreamingExecutor"
"""What the names of the threads begin with that execute a dataset; Ray 2.46 and 2.60."""
POLLED = {"start of a Serve application": "Serve's controller"}
"""By the name of a call: the part of a library that it asks again and again; Serve's calls are in no task events."""

OPERATORS = r"Read\w*|Write\w*|Map|MapBatches|MapRows|FlatMap|Filter|Project|Limit|Repartition|SplitBlocks"
DATA_TASK = re.compile(rf"(?=.*(->|\())({OPERATORS})(\(.*?\))?(->({OPERATORS})(\(.*?\))?)*")
"""A Data operator by name, as ``ReadParquet->Map(parse)``; one word alone may be anybody's."""


STARTS = ("__init__", "initialize_and_get_metadata")
"""The methods that run constructors: Serve's replicas run those of their deployments in one of their own."""
IN_PROXY = "ProxyResponseGenerator."
"""The functions in which Serve's proxy waits for the response to a request by HTTP or gRPC begin so; Ray 2.60."""


class Part(NamedTuple):
    """An actor recognised as a part of a library."""

    name: str
    which: str
    recogniser: Recogniser

    def call(self, task_name: str) -> str:
        """What a call is: ``request to ...``, ``start of ...``, else ``METHOD of ...``."""
        whose, _, method = task_name.rpartition(".")
        pattern, words = self.recogniser.work
        if not re.fullmatch(pattern, method):
            words = "start of" if method in STARTS else f"{method} of"
        return f"{words} {data_operator(whose) or self.name}"

    def is_upkeep(self, task_name: str) -> bool:
        """Whether a call runs nothing of the user's."""
        method = task_name.rpartition(".")[2]
        return self.recogniser.is_machinery or re.fullmatch(self.recogniser.upkeep, method) is not None


@lru_cache(maxsize=10_000)
def part(class_name: str, actor_name: str, actor_id: str) -> Part | None:
    """What an actor is in one of Ray's libraries, if it is in one."""
    for known in RECOGNISERS:
        by_class = re.fullmatch(known.class_name, class_name)
        by_name = re.fullmatch(known.actor_name, actor_name)
        if by_class and by_name:
            words = {"id": actor_id[:SHORT], **by_class.groupdict(), **by_name.groupdict()}
            return Part(known.name.format(**words), known.which.format(**words), known)
    return None


def thread_name(name: str) -> str:
    """The name of a thread; of Ray Data's executors without the id of the dataset, which says nothing to its user."""
    return EXECUTOR if name.startswith(EXECUTOR) else name


def polled_actors(index: SampleIndex, what: str | None) -> tuple[str, ...]:
    """The actors, by id, that a library asks again and again in a call that has this name."""
    name = POLLED.get(what or "")
    return tuple(actor.actor_id for actor in index.actors.values() if name and _is_part(actor, name))


def _is_part(actor: Actor, name: str) -> bool:
    found = part(actor.class_name, actor.name, actor.actor_id)
    return found is not None and found.name == name and actor.state == "ALIVE"


def is_machinery_actor(actor: Actor) -> bool:
    """Whether an actor runs nothing of the user's: a part of a library that serves the library itself."""
    found = part(actor.class_name, actor.name, actor.actor_id)
    return found is not None and found.recogniser.is_machinery


def data_operator(task_name: str) -> str | None:
    """``Data operator ReadParquet->Map(parse)`` for the name of a task that Data made."""
    return f"Data operator {task_name}" if DATA_TASK.fullmatch(task_name) else None


def machinery(index: SampleIndex, vertices: Mapping[Key, Vertex]) -> set[Key]:
    """Those who are a library at work for itself."""
    machines = _machines(index)
    return {key for key, vertex in vertices.items() if _is_machinery(index, machines, vertex)}


def without_idle_machinery(index: SampleIndex, vertices: dict[Key, Vertex]) -> dict[Key, Vertex]:
    """The graph in which machinery waits for nothing, unless something else needs it, directly or through others.

    Serve's controller, say, always has calls in which others wait for news, whether or not any will come.
    """
    machines = _machines(index)
    found = {key for key, vertex in vertices.items() if _is_machinery(index, machines, vertex)}
    if not found:
        return vertices
    idle = found.union(key for key in vertices if isinstance(key, AnyKey))
    idle -= _needed(vertices, vertices.keys() - idle)
    at_rest = {key: msgspec.structs.replace(vertices[key], wait=None, never=None) for key in idle}
    return {**vertices, **at_rest}


def _machines(index: SampleIndex) -> dict[str, Part]:
    """The actors, by id, that do something for the library alone."""
    parts = ((actor.actor_id, part(actor.class_name, actor.name, actor.actor_id)) for actor in index.actors.values())
    return {key: one for key, one in parts if one and (one.recogniser.is_machinery or one.recogniser.upkeep != NEVER)}


def _is_machinery(index: SampleIndex, machines: Mapping[str, Part], vertex: Vertex) -> bool:
    """Whether this is a library at work for itself, and no code of the user's.

    So is a coroutine besides all tasks that shows none, as those in which Serve's handles wait for news, and the loop
    of a compiled graph's actor while it waits for input, or until its output is taken.
    """
    thread = index.thread(vertex.worker_id, vertex.os_thread_id) if vertex.coroutine_id is None else None
    is_in_channel = thread is not None and thread.call is not None and thread.call.channel is not None
    if thread is not None and (is_in_channel or thread.name == GRAPH_MONITOR):
        return not is_user_code(index, thread)
    if vertex.coroutine_id is not None and vertex.task_id is None:
        coroutine = index.coroutine(vertex.worker_id, vertex.coroutine_id)
        if coroutine is None or is_clients(index, vertex.worker_id, coroutine):
            return False
        return not is_user_code(index, coroutine)
    if vertex.task_id is not None:
        machine = machines.get(actor_of_task(vertex.task_id) or "")
        task = index.tasks.get(vertex.task_id)
        return machine is not None and machine.is_upkeep(task.name if task else "")
    worker = index.workers.get(vertex.worker_id or "")
    machine = machines.get(worker.actor_id or "") if worker else None
    return machine is not None and machine.recogniser.is_machinery


def is_clients(index: SampleIndex, worker_id: str | None, coroutine: Coroutine) -> bool:
    """Whether a coroutine of Serve's proxy waits for a client's request to be executed, or to begin."""
    if coroutine.call is None or coroutine.call.kind != "await":
        return False
    if not any(frame.function.startswith(IN_PROXY) for frame in index.snapshot.frames_of(coroutine)):
        return False
    awaited = (index.coroutine(worker_id, one) for one in coroutine.call.coroutines)
    is_queued = any(one is not None and one.call is not None and one.call.queued for one in awaited)
    return is_queued or any(producer_task_id(ref) in index.request_of_task for ref in coroutine.call.refs)


def _needed(vertices: Mapping[Key, Vertex], by: Iterable[Key]) -> set[Key]:
    """All that these wait for, directly or through others, and these themselves."""
    reached = set(by)
    ahead = list(reached)
    while ahead:
        for target in _targets(vertices[ahead.pop()]):
            if target not in reached:
                reached.add(target)
                ahead.append(target)
    return reached


def _targets(vertex: Vertex) -> Iterator[Key]:
    for group in vertex.wait.groups if vertex.wait else ():
        yield from (target.vertex for target in group.targets)
