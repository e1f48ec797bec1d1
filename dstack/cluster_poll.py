"""What one poll of a cluster returns: running and submitted tasks and counters, without stacks; never saved."""

from __future__ import annotations

from dstack.model import Job, Model


class WorkerPoll(Model, frozen=True):
    """One worker's or driver's answer.

    ``running`` are the tasks that it runs. ``pending`` are the tasks that it has submitted and that have not ended,
    with their states; None if they are too many to be listed. ``counters`` change whenever the worker does something.
    """

    worker_id: str
    is_driver: bool = False
    running: tuple[str, ...] = ()
    pending: dict[str, str] | None = None
    counters: tuple[int, ...] = ()


class ClusterPoll(Model, frozen=True):
    """One poll of a cluster.

    ``silent`` are the workers that exist and did not answer. ``jobs`` may have ended; they are only there if asked for.
    """

    workers: tuple[WorkerPoll, ...] = ()
    silent: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    nodes: int = 0
