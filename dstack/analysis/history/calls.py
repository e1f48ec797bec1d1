"""The calls of a recorded run and their callers, each with what it had to wait for; times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstack.analysis.history.task_index import Attempt

Needed = tuple[str, int]
"""A function of a caller's calls, and how many of them must have ended."""


@dataclass(slots=True)
class RunCall:
    """One attempt with all its times, in Unix seconds; unknown ones are those of the event before.

    ``free_at`` is when its slot of its actor was free again. ``makers`` made its arguments. ``behind`` is the call
    whose end gave it its slot or its resources, ``created_by`` the creation of its actor, ``retried`` its attempt
    before. ``caller`` submitted it in its ``step``; ``runs`` is the caller that it is itself, if it submits calls.
    ``resources`` are those that it needs to start.
    """

    number: int
    attempt: Attempt
    name: str
    submitted_at: float
    ready_at: float
    started_at: float
    ended_at: float
    free_at: float
    caller: Caller = field(repr=False)
    step: int = -1
    resources: Mapping[str, float] = field(default_factory=dict, repr=False)
    makers: tuple[RunCall, ...] = field(default=(), repr=False)
    behind: RunCall | None = field(default=None, repr=False)
    created_by: RunCall | None = field(default=None, repr=False)
    retried: RunCall | None = field(default=None, repr=False)
    runs: Caller | None = field(default=None, repr=False)

    @property
    def actor_id(self) -> str:
        """The actor whose queue it was in; empty for tasks, and for the creations of actors."""
        task = self.attempt.task
        return task.actor_id or "" if task.kind == "ACTOR_TASK" else ""

    @property
    def is_creation(self) -> bool:
        """Whether it creates an actor."""
        return self.attempt.task.kind == "ACTOR_CREATION_TASK"


@dataclass(frozen=True, slots=True)
class CallerStep:
    """A caller submits a call, or ends if that is None, after it has waited for others, and worked since then.

    ``needs`` are the calls that it waits for, ``counted`` how many calls of a function, whichever they are; ``last`` is
    the one that ended last of all. ``since`` is when its own work began, ``at`` when it ended.
    """

    at: float
    since: float
    submits: RunCall | None
    needs: tuple[RunCall, ...] = ()
    counted: Needed | None = None
    last: RunCall | None = None
    is_barrier: bool = False


@dataclass(slots=True)
class Caller:
    """What submits calls, one after the other: a driver, or a call.

    ``attempt`` is None if the GCS does not keep it, ``call`` also if it has not ended.
    """

    task_id: str
    name: str
    attempt: Attempt | None
    known_start: float | None
    call: RunCall | None = None
    calls: list[RunCall] = field(default_factory=list, repr=False)
    steps: list[CallerStep] = field(default_factory=list, repr=False)

    @property
    def began_at(self) -> float:
        """When it began, or its first submission if that is not known."""
        if self.known_start is not None:
            return self.known_start
        return self.calls[0].submitted_at if self.calls else 0.0

    @property
    def is_driver(self) -> bool:
        """Whether it is the main thread of a driver."""
        return self.attempt is not None and self.attempt.task.kind == "DRIVER_TASK"
