"""What Ray knows of what loops poll for: actors by name, nodes, resources, and room in an actor's queue.

A loop that polls by calls that succeed waits for nothing that Ray knows. Its source says what it asks for, and the
control plane what the answer is at this moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from dstack import words
from dstack.analysis.findings.outside_waits import loop_of
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.membership import Membership
from dstack.analysis.graph.resource_holders import in_group, summed
from dstack.analysis.index.sample_index import SampleIndex, key_of_task
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import predicate
from dstack.analysis.naming.vertex_details import details_of
from dstack.model.diagnosis import Step, Vertex
from dstack.model.snapshot import Actor, Job
from dstack.observed.node import Task
from dstack.observed.processes import ActorName, LoopBody, Thread
from dstack.words import grouped

NOT_STARTED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


def polled_state(reduced: ReducedGraph, waiters: Sequence[Vertex]) -> Iterator[Step]:
    """What is known of what the loops of these ask for, each once."""
    found: dict[str, None] = {}
    for vertex in waiters[: words.SHOWN]:
        loop = loop_of(details_of(reduced.index, vertex))
        if loop is not None:
            found.update(dict.fromkeys(_of_loop(reduced, vertex, loop)))
    yield from (Step(text=text) for text in found)


def _of_loop(reduced: ReducedGraph, vertex: Vertex, loop: LoopBody) -> Iterator[str]:
    job = reduced.index.jobs.get(reduced.job_of(vertex) or "")
    for asked in _asked_for(reduced.index, vertex, loop) if job else ():
        if text := _actor(reduced, asked, job):
            yield f'ray.get_actor("{asked.name}") {text}'
    yield from (CLUSTER[call](reduced.index) for call in loop.calls if call in CLUSTER)
    if loop.catches_full_queue:
        yield from _full_queues(reduced.index, vertex, loop)


def _asked_for(index: SampleIndex, vertex: Vertex, loop: LoopBody) -> Iterator[ActorName]:
    """The actors that a loop asks for, where their names are in its source or its variables."""
    execution = index.execution_of(vertex)
    texts = execution.texts if isinstance(execution, Thread) else {}
    for asked in loop.asks_for:
        name = texts.get(asked.name) if asked.is_variable else asked.name
        if name:
            yield ActorName(name=name, namespace=asked.namespace)


# Actors by name


def _actor(reduced: ReducedGraph, asked: ActorName, job: Job | None) -> str:
    """What ``ray.get_actor`` finds; empty if the actor is alive, or its namespace unknown."""
    namespace = asked.namespace or (job.namespace if job else "")
    of_name = [actor for actor in reduced.index.actors.values() if actor.name == asked.name]
    named = [actor for actor in of_name if actor.namespace == namespace]
    live = next((actor for actor in named if actor.state != "DEAD"), None)
    if live is None:
        elsewhere = [actor for actor in of_name if actor.namespace != namespace and actor.state != "DEAD"]
        return f"finds no actor: {_death(reduced.index, named[-1]) if named else _absence(elsewhere, namespace)}"
    return f"finds {names.actor(live)}, which {_start(reduced, live)}" if live.state in NOT_STARTED else ""


def _death(index: SampleIndex, actor: Actor) -> str:
    """``actor Registry "registry" is DEAD since 03:12:40: ray.kill``, with its restarts."""
    since = f" since {words.time_of_day(actor.ended_at)}" if actor.ended_at and index.snapshot.has_one_time else ""
    restarts = f"; it {names.restarts(actor)}" if actor.num_restarts else ""
    return f"{names.actor(actor)} is DEAD{since}: {actor.death_cause or 'no cause given'}{restarts}"


def _absence(elsewhere: Sequence[Actor], namespace: str) -> str:
    """Where there is an actor of the name, if anywhere."""
    none = f"Ray lists none of this name in {_namespace(namespace)}"
    others = [f"{names.actor(one)} is in {_namespace(one.namespace)}" for one in elsewhere]
    return f"{none}; {words.shortly(others)}" if others else f"{none}, nor in any other"


def _namespace(name: str) -> str:
    """``namespace "prod"``; Ray gives a job without one an id as its namespace."""
    try:
        return f"the anonymous namespace {UUID(name)}"
    except ValueError:
        return f'namespace "{name}"'


def _start(reduced: ReducedGraph, actor: Actor) -> str:
    """What an actor lacks that has not started, or is being restarted."""
    restarts = f"{names.restarts(actor)}, and " if actor.num_restarts else ""
    creation = reduced.index.creations.get(actor.actor_id)
    vertex = reduced.vertices.get(key_of_task(reduced.index, creation.task_id)) if creation else None
    if vertex is None:
        return f"{restarts}has not started ({actor.state})"
    details = details_of(reduced.index, vertex)
    why = predicate(reduced.index, reduced.vertices, vertex, details)
    return f"{restarts}has not started ({actor.state}): it {why}"


# The cluster


def _nodes(index: SampleIndex) -> str:
    """``ray.nodes() lists 1 node that is alive; the last one joined 12 min ago``."""
    snapshot = index.snapshot
    alive, dead = sum(node.alive for node in snapshot.nodes), sum(not node.alive for node in snapshot.nodes)
    membership = Membership(snapshot)
    lists = f"lists {words.plural(alive, 'node')} that {words.word(alive, 'is', 'are')} alive"
    lost = f" and {dead:,} dead" if dead else ""
    if membership.is_closed:
        return f"ray.nodes() {lists}: a driver made this cluster by ray.init(), and no other node has joined it"
    joined_s = membership.joined_s
    return f"ray.nodes() {lists}{lost}" + (f"; the last one joined {words.duration(joined_s)} ago" if joined_s else "")


def _resources(call: str, of_nodes: Callable[[SampleIndex], Iterable[Mapping[str, float]]]) -> Callable[..., str]:
    """The row of a call that returns the sums of the resources of nodes."""

    def text(index: SampleIndex) -> str:
        sums = summed(of_nodes(index))
        own = {name: sums[name] for name in sorted(sums) if not in_group(name) and not name.startswith("node:")}
        return f"{call}() returns {names.amounts(own)}"

    return text


CLUSTER: Mapping[str, Callable[[SampleIndex], str]] = {
    "ray.nodes": _nodes,
    "ray.cluster_resources": _resources("ray.cluster_resources", lambda index: index.sample.total.values()),
    "ray.available_resources": _resources("ray.available_resources", lambda index: index.sample.available.values()),
}
"""What calls that a loop repeats return now, by their names in its source."""


# Queues of actors


def _full_queues(index: SampleIndex, vertex: Vertex, loop: LoopBody) -> Iterator[str]:
    """The actor whose queue has no room for another call of this process, with the calls in it.

    Ray counts the calls of one process that have not ended; it reports no actor's limit (Ray 2.60).
    """
    methods = {call.split(".")[-2] for call in loop.calls if call.endswith(".remote") and call.count(".") > 1}
    own = (task for task in index.tasks.values() if task.owner_id == vertex.worker_id and task.kind == "ACTOR_TASK")
    asked = [task for task in own if not methods or task.name.rpartition(".")[2] in methods]
    of_actors: Mapping[str, list[Task]] = grouped((task.actor_id or "", task) for task in asked)
    for actor_id, tasks in sorted(of_actors.items(), key=lambda one: -len(one[1]))[:1]:
        running = {task_id for worker in index.sample.workers for task_id in worker.running_task_ids or ()}
        runs = sum(task.task_id in running for task in tasks)
        if actor := index.actors.get(actor_id):
            unended = f"{words.plural(len(tasks), 'call')} to {names.actor(actor)}, of which {runs:,} run"
            yield (
                f"{describe(vertex)} catches PendingCallsLimitExceeded: it has {unended}; Ray raises it for a call"
                " beyond the actor's max_pending_calls"
            )
