"""Changes of what holds resources, and of how much of them there is, that may free a deadlock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from dstack import words
from dstack.analysis.findings.deadlock_scope import (
    Change,
    DeadlockScope,
    both,
    without,
)
from dstack.analysis.graph.resource_holders import EPSILON, in_group, plain, summed
from dstack.analysis.index import ray_libraries
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.solve.requirements import targets_of
from dstack.libraries import data, serve, train
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor, PlacementGroup
from dstack.words import grouped

STORE = ("object_store_memory",)
"""The resource that arguments of running tasks hold."""
SETTINGS = {
    data.PARTS: "concurrency of the Data operator",
    serve.PARTS: "num_replicas and ray_actor_options of the deployment",
    train.PARTS: "ScalingConfig of the trainer",
    train.TRIALS: "resources of a trial",
}
"""What decides how much the actors and placement groups of a library hold: the library ends them, not its user."""


def _lacking(request: Vertex) -> tuple[str, ...] | None:
    """The resources that a pending task, actor or placement group lacks."""
    wait = request.wait if request.task_id or request.placement_group_id else None
    return wait.resources if wait and wait.kind == "resources" else None


def more_resources(scope: DeadlockScope) -> Iterator[Change]:
    """So much more of a resource that a request is satisfied which does not wait as its like do."""
    for resources, calls in scope.with_behind(scope.members, _lacking).items():
        if resources == STORE:
            text = (
                "give the nodes larger object stores, or pass less data as arguments, which tasks hold until they end"
            )
            yield Change("more resources", 3, text, scope.start(calls), None, tuple(calls))
            continue
        shortages = {call.key: _shortage(scope, call) for call in calls}
        needed = [call for call in calls if not scope.sibling_of(call)] or calls
        blockers = [call for call in calls if scope.sibling_of(call)]
        most = max((shortages[call.key] for call in needed), key=lambda amounts: sum(amounts.values()), default={})
        if any(not shortages[call.key] for call in needed):
            continue  # as for an affinity to a node: enough is free elsewhere
        more = summed([most, *(_asked(scope, call) for call in blockers if call not in needed)])
        more = {name: _whole(name, amount) for name, amount in more.items() if name in resources}
        groups = [one for call in calls if (one := _group_of_request(scope, call))]
        where = f" in {names.placement_group(groups[0])}" if groups else ""
        text = f"{'reserve' if groups else 'add'} {names.amounts(more)}{where}"
        yield Change("more resources", 3 + len(blockers) / 10, text, scope.start(calls), None, tuple(calls))


def _whole(name: str, amount: float) -> float:
    """An amount that a node can be given: CPUs and GPUs are whole."""
    return float(ceil(amount - EPSILON)) if name in ("CPU", "GPU") else amount


def _asked(scope: DeadlockScope, call: Vertex) -> dict[str, float]:
    """What a pending task, actor or placement group asks for."""
    if group := scope.index.placement_groups.get(call.placement_group_id or ""):
        return summed(bundle.resources for bundle in group.bundles)
    task = scope.index.tasks.get(call.task_id or "")
    return plain(task.required_resources) if task else {}


def _group_of_request(scope: DeadlockScope, call: Vertex) -> PlacementGroup | None:
    """The placement group that a pending task must run in."""
    task = scope.index.tasks.get(call.task_id or "")
    places = (in_group(name) for name in (task.required_resources if task else ()))
    return next((scope.index.placement_groups.get(place.group) for place in places if place), None)


def _shortage(scope: DeadlockScope, call: Vertex) -> dict[str, float]:
    """What is missing for a request on the node that lacks the least; all of it in a placement group."""
    asked, index = _asked(scope, call), scope.index
    if _group_of_request(scope, call):
        return asked
    free = list(index.sample.available.values())
    group = index.placement_groups.get(call.placement_group_id or "")
    if group and group.strategy in ("PACK", "SPREAD"):
        free = [summed(free)]
    missing = ({name: asked[name] - node.get(name, 0.0) for name in asked} for node in free)
    short = [{name: amount for name, amount in one.items() if amount > EPSILON} for one in missing]
    return min(short, key=lambda amounts: sum(amounts.values()), default=asked)


def less_resources(scope: DeadlockScope) -> Iterator[Change]:
    """Holders that hold nothing of what is lacking: functions, classes of actors, and placement groups."""
    for resources, calls in scope.with_behind(scope.members, _lacking).items():
        if resources == STORE:
            continue
        waiters = [one for one in scope.vertices.values() if one.wait and one.wait.kind == "resources"]
        holders = [scope.vertices[key] for one in waiters for key in targets_of(one) if key in scope.vertices]
        known = grouped((text, one) for one in holders if (text := _holder_in_words(scope, one, resources)))
        for text, found in known.items():
            keys = {one.key for one in found}
            text += ", or start fewer of them" if len(keys) > 1 and found[0].holder else ""
            edit = both(without(waiters, keys), scope.start(_requests_of(scope, calls, found)))
            yield Change("less resources", 2 if resources == ("CPU",) else 6, text, edit)


def _requests_of(scope: DeadlockScope, calls: Sequence[Vertex], holders: Sequence[Vertex]) -> list[Vertex]:
    """The requests for actors of the holders' classes: these ask for less, too."""
    classes = {one.holder.class_name for one in holders if isinstance(one.holder, Actor)}
    creations = ((call, scope.actor_of(call)) for call in calls if scope.is_constructor(call))
    return [call for call, actor in creations if actor and actor.class_name in classes]


def _holder_in_words(scope: DeadlockScope, vertex: Vertex, resources: tuple[str, ...]) -> str:
    """What holds less, as a change; empty for helpers, and for waits of executions that hold nothing."""
    none = "set num_cpus=0 for" if resources == ("CPU",) else f"ask for less {words.listed(resources)} in"
    part = ray_libraries.part_of(vertex.holder) if isinstance(vertex.holder, Actor) else None
    if vertex.holder is not None and (settings := settings_of(scope.index, [vertex.holder])):
        return f"let {part.name if part else operand_in_words(vertex.holder)} ask for less ({settings})"
    if part is not None:
        return f"let {part.name} ask for less"
    match vertex.holder:
        case PlacementGroup():
            return f"reserve less {words.listed(resources)} in {names.placement_group(vertex.holder)}"
        case Actor():
            return f"{none} {names.actor_class(vertex.holder.class_name)}"
    return f"{none} {describe(vertex)}" if vertex.kind == "execution" and vertex.task_id else ""


def is_of_library(index: SampleIndex, holder: Actor | PlacementGroup) -> bool:
    """Whether it is an actor of a library, or a placement group of such actors: the library ends it."""
    return any(map(ray_libraries.is_library_actor, _actors(index, holder)))


def settings_of(index: SampleIndex, holders: Iterable[Actor | PlacementGroup]) -> str:
    """What decides how much the holders of libraries hold."""
    actors = (actor for holder in holders for actor in _actors(index, holder))
    parts = (ray_libraries.part_of(one) for one in actors)
    recognisers = [part.recogniser for part in parts if part]
    return words.listed([text for rows, text in SETTINGS.items() if any(one in rows for one in recognisers)])


def _actors(index: SampleIndex, holder: Actor | PlacementGroup) -> Sequence[Actor]:
    """The actor itself; of a placement group its creator and the actors in it."""
    if isinstance(holder, Actor):
        return (holder,)
    id_ = holder.placement_group_id
    return [
        one for one in index.actors.values() if one.placement_group_id == id_ or one.actor_id == holder.creator_actor_id
    ]
