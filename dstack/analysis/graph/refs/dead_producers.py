"""Dead actors, owners and placement groups: the calls and values that they can never produce.

Ray raises an error in each wait for something dead, mostly within a second and under load within a few (seen on Ray
2.46 and 2.60, for dead actors, owners and nodes). So a death only counts after a longer time: until then the error may
arrive. The removal of a placement group has no time. A task that had room in it fails at once, but a task whose group
was never placed, or that was submitted after the removal, waits for ever (seen on Ray 2.60). A retried task had room
before: it may yet fail (seen pending for 20 s under load on Ray 2.60), or wait for ever if it was retried after the
removal. So it only counts after a longer time.
"""

from __future__ import annotations

from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Actor, GoneWorker, PlacementGroup
from dstack.model.vertex_facts import Never, never
from dstack.observed.node import Task

RELEASED = ("OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED")
"""Reasons for which an actor ends that are no failure of its own (Ray 2.46 to 2.60)."""
ERROR_WITHIN_S = 30.0
"""Time within which Ray raises an error in waits for something dead."""


def why_never_runs(index: SampleIndex, task: Task) -> Never | None:
    """Why a pending task can never run, though its result may be needed: its actor or its placement group is gone."""
    if task.kind == "ACTOR_TASK":
        actor = index.actors.get(task.actor_id or "")
        is_gone = actor is not None and _is_unreachable(index, actor, task)
        return never("dead actor", actor, cause_of(actor)) if actor and is_gone else None
    if dead_actor_of(index, task) is not None:
        return None
    group = removed_group_of(index, task)
    if group is not None and not _may_yet_fail(index, task):
        return never("removed group", group)
    return None


def removed_group_of(index: SampleIndex, task: Task) -> PlacementGroup | None:
    """The placement group that a task must run in, if it was removed."""
    group = index.placement_groups.get(task.placement_group_id or "")
    return group if group and group.state == "REMOVED" and task.state == "PENDING_NODE_ASSIGNMENT" else None


def _may_yet_fail(index: SampleIndex, task: Task) -> bool:
    """Whether a retried task in a removed group is pending for so short that Ray may yet raise an error for it."""
    times = index.snapshot.task_times.get(task.task_id)
    since = times.states.get(task.state) if times and times.attempt == task.attempt else None
    return task.attempt > 0 and not is_long_ago(index, since)


def dead_actor_of(index: SampleIndex, task: Task) -> Actor | None:
    """The actor that a task would create, if it is dead.

    Its calls fail, but its owner may list the creation as pending for another 45 s (seen on Ray 2.60 under load).
    """
    actor = index.actors.get(task.actor_id or "") if task.kind == "ACTOR_CREATION_TASK" else None
    return actor if actor is not None and actor.state == "DEAD" else None


def dead_owner(index: SampleIndex, ref: str) -> GoneWorker | None:
    """The owner of a ref if it is dead: no other process knows the state of the value."""
    return index.dead_workers.get(index.refs.owner_of.get(ref, ""))


def is_long_ago(index: SampleIndex, ended_at: float | None) -> bool:
    """Whether something ended so long ago that Ray would have raised errors in the waits for it.

    The clock that gave the time may be the one that is furthest behind.
    """
    behind_s = max((-(node.clock_ahead_s or 0.0) for node in index.snapshot.nodes), default=0.0)
    return ended_at is not None and ended_at + max(0.0, behind_s) + ERROR_WITHIN_S < index.began_at


def _is_unreachable(index: SampleIndex, actor: Actor, call: Task) -> bool:
    """Whether a call can no longer reach its actor; an exiting actor still ends the calls that it has."""
    is_there = actor.worker_id in index.workers
    is_waiting = call.state in ("PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")
    return actor.state == "DEAD" and is_waiting and not is_there and is_long_ago(index, actor.ended_at)


def cause_of(actor: Actor) -> str:
    """Ray's reason why an actor died."""
    return actor.death_cause or "no cause given"
