"""Who would have made something and is dead for good, so that nobody ever makes it.

Ray gives those who wait for something dead an error in its place, mostly within a second and under load within some
(seen on Ray 2.46 and 2.60, for dead actors, owners and nodes). So only who has been dead for longer counts here: until
then the error may be on its way. A placement group's removal has no time; a task it had room for is told at once, but
one whose group never had a place, or that was submitted after the removal, waits for ever (seen on Ray 2.60).
"""

from __future__ import annotations

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model import Actor, GoneWorker, Task

RELEASED = ("OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED")
"""Reasons for which an actor ends that are no failure of its own (Ray 2.46 to 2.60)."""
TOLD_WITHIN_S = 30.0
"""Time within which Ray tells those who wait for something that it is dead."""


def why_gone(index: SampleIndex, task: Task) -> str | None:
    """Why a task that does not run never will, if who should run it is gone."""
    if task.kind == "ACTOR_TASK":
        actor = index.actors.get(task.actor_id or "")
        return f"{names.actor(actor)} is dead: {cause_of(actor)}" if actor and _is_gone(index, actor, task) else None
    group = index.placement_groups.get(task.placement_group_id or "")
    if group and group.state == "REMOVED" and task.state == "PENDING_NODE_ASSIGNMENT":
        return f"{names.placement_group(group)}, which it must run in, was removed"
    return None


def dead_owner(index: SampleIndex, ref: str) -> GoneWorker | None:
    """The owner of a ref, where that is dead: nobody else can tell what became of it."""
    return index.dead_workers.get(index.owner_of.get(ref, ""))


def is_long_ago(index: SampleIndex, ended_at: float | None) -> bool:
    """Whether something ended so long ago that whoever waits for it would have been told.

    Whoever's clock tells when that was, it may be the one that is furthest behind.
    """
    behind_s = max((-(node.clock_ahead_s or 0.0) for node in index.snapshot.nodes), default=0.0)
    return ended_at is not None and ended_at + max(0.0, behind_s) + TOLD_WITHIN_S < index.began_at


def _is_gone(index: SampleIndex, actor: Actor, call: Task) -> bool:
    """Whether a call can no longer reach its actor; one that is exiting still ends those that it has."""
    is_there = actor.worker_id in index.workers
    is_waiting = call.state in ("PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER")
    return actor.state == "DEAD" and is_waiting and not is_there and is_long_ago(index, actor.ended_at)


def cause_of(actor: Actor) -> str:
    """Why an actor died, as Ray has it."""
    return actor.death_cause or "no cause given"
