"""The fixes for resources that are held: by what waits, or until an actor ends or a placement group is removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dstack import words
from dstack.analysis.findings.facts.deadlocked_waits import DeadlockedWaits
from dstack.analysis.index import ray_libraries
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe, labels_of, operand_in_words
from dstack.libraries import data, serve, train
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor, PlacementGroup
from dstack.model.vertex_keys import AnyKey

STORE = ("object_store_memory",)
"""The resource that arguments of running tasks hold."""
SETTINGS = {
    data.PARTS: "concurrency of the Data operator",
    serve.PARTS: "num_replicas and ray_actor_options of the deployment",
    train.PARTS: "ScalingConfig of the trainer",
    train.TRIALS: "resources of a trial",
}
"""What decides how much the actors and placement groups of a library hold: the library ends them, not its user."""


def held_until_released(waits: DeadlockedWaits) -> str | None:
    """Leave room beside resources that are held until an actor ends or a placement group is removed."""
    lifetimes = [vertex for vertex in waits.members if vertex.kind == "lifetime"]
    if not lifetimes or not waits.draft.resources:
        return None
    requests = (vertex for vertex in waits.members if vertex.wait and vertex.wait.resources)
    requested = sorted({describe(vertex) for vertex in requests if vertex.task_id or vertex.placement_group_id})
    holders = {operand_in_words(vertex.holder): vertex.holder for vertex in lifetimes if vertex.holder}
    what = words.listed(waits.draft.resources)
    if not requested or not holders:
        ways = ("start fewer actors and placement groups", "let them ask for less", *_more(waits, what))
        return f"{words.capitalised(words.listed(ways, ' or '))}."
    hold, until = words.word(len(holders), "holds", "hold"), until_released([one for one in lifetimes if one.holder])
    settings = _settings(waits.draft.reduced.index, holders.values())
    it = words.word(len(holders), "it", "them")
    less = f"let {it} ask for less{f' ({settings})' if settings else ''}"
    ways = (f"start fewer of {it}" if len(holders) > 1 else "", less, *_more(waits, what))
    return (
        f"Leave {what} for {words.shortly(requested, ' or ')}: {words.shortly(sorted(holders))} {hold} it {until}. "
        f"{words.capitalised(words.listed(list(filter(None, ways)), ' or '))}."
    )


def until_released(lifetimes: Sequence[Vertex]) -> str:
    """``until it ends``, or of placement groups ``until they are removed``."""
    is_one = len(lifetimes) == 1
    if all(isinstance(vertex.key, AnyKey) and vertex.key.what == "removal" for vertex in lifetimes):
        return "until it is removed" if is_one else "until they are removed"
    return "until it ends" if is_one else "until they end"


def held_while_waiting(waits: DeadlockedWaits) -> str | None:
    """Release resources while waiting for a task that needs them."""
    if not waits.kinds & {"resources", "placement group"}:
        return None
    requested = labels_of(one for one in waits.members if one.wait and one.wait.resources and one.is_counted)
    if set(waits.draft.resources) <= {"CPU"}:
        found = labels_of(vertex for vertex in waits.members if vertex.kind == "execution" and vertex.task_id)
        holders = words.shortly(found) or "the waiting tasks"
        less = f"let {holders} ask for less (num_cpus=0 for a task that only waits)"
        ways = words.listed((less, "return ObjectRefs instead of waiting", *_more(waits, "CPUs")), " or ")
        what, need = words.shortly(requested) or "the pending tasks", words.word(len(requested), "needs", "need")
        return f"{words.capitalised(ways)}: {what} {need} the CPUs that are held there."
    what = words.shortly(requested, " or ") or "a task"
    if waits.draft.resources == STORE:
        return (
            f"Arguments in the object store are held until their task ends. Pass less data as arguments, start {what} "
            "first, return its ObjectRef instead of getting it, or give the nodes a larger object store."
        )
    scarce = words.listed(waits.draft.resources)
    changes = ("start that first", "let it ask for less", "return its ObjectRef instead of getting it")
    return (
        f"Do not hold {scarce} while waiting for {what}, which needs it too: "
        f"{words.listed([*changes, *_more(waits, scarce)], ' or ')}."
    )


def _more(waits: DeadlockedWaits, what: str) -> Sequence[str]:
    """More of a resource, where that helps.

    A task in a placement group can only use the bundles of its group. Where a node has enough free already, as for a
    task with affinity to another one, more of it does not help.
    """
    index = waits.draft.reduced.index
    requests = [vertex for vertex in waits.members if vertex.wait and vertex.wait.resources]
    tasks = [index.tasks[vertex.task_id] for vertex in requests if vertex.task_id in index.tasks]
    if any(task.placement_group_id for task in tasks):
        return (f"reserve another bundle with {what}",)
    free = list(index.sample.available.values())
    if any(_fits(task.required_resources, node) for task in tasks for node in free):
        return ()
    return (f"add {what}",)


def _fits(request: Mapping[str, float], free: Mapping[str, float]) -> bool:
    return bool(request) and all(free.get(name, 0.0) >= amount for name, amount in request.items())


def is_of_library(index: SampleIndex, holder: Actor | PlacementGroup) -> bool:
    """Whether it is an actor of a library, or a placement group of such actors: the library ends it."""
    return any(ray_libraries.part(one.class_name, one.name, one.actor_id) for one in _actors(index, holder))


def _settings(index: SampleIndex, holders: Iterable[Actor | PlacementGroup]) -> str:
    """What decides how much the holders of libraries hold."""
    actors = (actor for holder in holders for actor in _actors(index, holder))
    parts = (ray_libraries.part(one.class_name, one.name, one.actor_id) for one in actors)
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
