"""What a worker, thread or coroutine does in a sample."""

from __future__ import annotations

from typing import Literal

from dstack.diagnosis import Vertex
from dstack.model import Coroutine, Thread

Activity = Literal["stuck", "waiting", "running", "off CPU", "idle", "unreadable", "not read"]
"""``off CPU`` is a thread that neither waits nor runs: it sleeps, is in I/O, or in a call outside of Python.

``unreadable`` is a call of which no stack was read, ``not read`` a worker that does not count as read.
"""
ACTIVITIES: tuple[Activity, ...] = ("stuck", "waiting", "running", "off CPU", "idle", "unreadable", "not read")
"""Worst first."""


def activity_of(vertex: Vertex | None, execution: Thread | Coroutine) -> Activity:
    """The activity of a thread or coroutine; ``vertex`` is its vertex in the graph, if it has one."""
    if vertex is not None and (vertex.wait is not None or vertex.never is not None):
        return "waiting"
    return "running" if isinstance(execution, Thread) and execution.on_cpu else "off CPU"
