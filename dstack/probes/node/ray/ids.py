"""Ids of Ray's tasks and actors. A task's has 24 bytes, of which the last 16 are its actor's (Ray 2.46 to 2.60)."""

from __future__ import annotations

from dstack.probes.node.cpython.objects import Objects

ACTOR_ID_TYPES = ("ray._raylet.ActorID", "ray.ActorID")
ACTOR_ID_AT, ACTOR_ID_SIZE = 32, 16
"""Where an ActorID has the bytes of its id; Ray 2.46 and 2.60."""


def actor_of_task(task_id: str | None) -> str:
    """The id of the actor that a task's id names; empty where there is no task."""
    return (task_id or "")[16:48]


def actor_of_handle(objects: Objects, handle: int) -> str:
    """The id of the actor that a handle is for. Raises :class:`Unreadable`."""
    objects.expect(handle, "ActorHandle")
    actor_id = objects.attribute(handle, "_ray_actor_id")
    objects.expect(actor_id, *ACTOR_ID_TYPES)
    return objects.memory.read(actor_id + ACTOR_ID_AT, ACTOR_ID_SIZE).hex()
