"""What a cheap look shows: who runs what and has submitted what, without stacks. Taken often, never kept in files."""

from __future__ import annotations

from dstack.model import Model


class WorkerGlance(Model, frozen=True):
    """One worker's or driver's answer.

    ``running`` are the tasks that it runs. ``pending`` are the tasks it has submitted that have not ended, with their
    states; None where they are too many to be told one by one. ``counters`` are what it counts of its own doings: if
    any differs, something has happened there.
    """

    worker_id: str
    is_driver: bool = False
    running: tuple[str, ...] = ()
    pending: dict[str, str] | None = None
    counters: tuple[int, ...] = ()


class Glance(Model, frozen=True):
    """One cheap look at a cluster. ``silent`` are the workers that are there and gave no answer."""

    workers: tuple[WorkerGlance, ...] = ()
    silent: tuple[str, ...] = ()
    nodes: int = 0
