"""Ids of Ray's tasks and actors: the last 16 of a task id's 24 bytes are the actor's (Ray 2.46 to 2.60)."""

from __future__ import annotations

from dstack.probes.node.cpython.objects import Objects

ACTOR_ID_TYPES = ("ray._raylet.ActorID", "ray.ActorID")
ACTOR_ID_AT, ACTOR_ID_SIZE = 32, 16
"""Where an ActorID has the bytes of its id; Ray 2.46 and 2.60."""


def actor_of_task(task_id: str | None) -> str:
    """The id of the actor in the id of a task; empty without a task."""
    return (task_id or "")[16:48]


def actor_of_handle(objects: Objects, handle: int) -> str:
    """The id of the actor that a handle is for. Raises :class:`Unreadable`."""
    objects.expect(handle, "ActorHandle")
    actor_id = objects.attribute(handle, "_ray_actor_id")
    objects.expect(actor_id, *ACTOR_ID_TYPES)
    return objects.memory.read(actor_id + ACTOR_ID_AT, ACTOR_ID_SIZE).hex()
