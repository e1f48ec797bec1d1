"""Replies of core workers."""

from __future__ import annotations

from dstack.probes.node import wire


def replied(job_id: str | None, *, running: str | None = None) -> wire.CoreWorkerData:
    """The reply of a core worker that runs for this job."""
    return {
        "job_id": job_id,
        "actor_id": None,
        "running_task_ids": [running] if running else [],
        "held": {},
        "executed_tasks": 0,
        "is_cut": False,
        "counters": [],
        "tasks": [],
        "refs": [],
    }
