"""Replies of core workers."""

from __future__ import annotations

from dstack.observed.node import CoreWorkerReply


def replied(worker_id: str, job_id: str | None, *, running: str | None = None) -> CoreWorkerReply:
    """The reply of a core worker that runs for this job."""
    return CoreWorkerReply(worker_id=worker_id, job_id=job_id, running_task_ids=(running,) if running else ())
