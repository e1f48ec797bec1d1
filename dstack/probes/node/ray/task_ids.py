"""Ids of Ray's tasks: 24 bytes, of which the last 16 are the id of the task's actor (Ray 2.46 to 2.60)."""

from __future__ import annotations


def actor_of_task(task_id: str | None) -> str:
    """The id of the actor that a task's id names; empty where there is no task."""
    return (task_id or "")[16:48]
