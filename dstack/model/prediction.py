"""Predictions: deadlocks that did not happen, and that another order or a smaller cluster could reach."""

from __future__ import annotations

from typing import Literal

from dstack.model.snapshot import Model

HoldKind = Literal["only slot", "slot", "event loop", "lock", "resource"]


class Hold(Model, frozen=True):
    """What a call holds while it waits: ``name`` is the concurrency group of the actor, the lock or the resource.

    The name is empty for the default group. ``amount`` is how much of a resource, or how many slots there are.
    """

    kind: HoldKind
    name: str
    amount: float = 0.0


class Blocked(Model, frozen=True):
    """A call of a possible deadlock, which would wait there for ever.

    ``name`` is the call, ``awaits`` what it waits for: a call or a lock. One that ``is_queued`` would not begin.
    ``held_up_by`` are the members that hold the lock, slots or resource that it waits for, by number. ``actor`` is a
    name that tells its actor from others, empty without one. The line is where it waits. ``began_at`` and ``ended_at``
    are when it ran in the run that was seen, None if unknown or not reached. ``is_sampled`` says that a sample showed
    it in this wait; else its source says so.
    """

    name: str
    task_id: str
    actor_id: str | None = None
    actor: str = ""
    awaits: str = ""
    holds: tuple[Hold, ...] = ()
    is_queued: bool = False
    held_up_by: tuple[int, ...] = ()
    file: str | None = None
    line: int | None = None
    source: str = ""
    blocks_loop: bool = False
    is_sampled: bool = False
    began_at: float | None = None
    ended_at: float | None = None


class Overtaking(Model, frozen=True):
    """A change of order that the deadlock needs: the call ``first`` begins, or takes the lock, before ``second``.

    Both are numbers of members. ``gap_s`` is how far apart they were in the run that was seen.
    """

    first: int
    second: int
    gap_s: float | None = None


class PossibleDeadlock(Model, frozen=True):
    """A deadlock that another order of the same calls on the same cluster would reach.

    ``members`` are its calls in the order of waiting, beginning with the call that began first in the run that was
    seen; a call that would be queued comes after the one that waits for it, and before those that hold what it needs.
    ``changes`` are the differences to the order that was seen; without any, the calls only have to overlap. ``gap_s``
    is how close the run came to it: the longest time from the end of one of the calls that have to overlap to the
    beginning of another.
    """

    members: tuple[Blocked, ...]
    job_id: str = ""
    changes: tuple[Overtaking, ...] = ()
    gap_s: float | None = None

    @property
    def shape(self) -> frozenset[tuple[str, str | None, int | None, str]]:
        """What two have in common that are the same for a reader: the calls, their lines, and what they wait for."""
        return frozenset((one.name, one.file, one.line, one.awaits) for one in self.members)


class CapacityNeed(Model, frozen=True):
    """How much of a resource calls need together so that they do not wait for each other for ever.

    ``at_once`` calls ``name`` were seen at the same time; each holds ``held`` of the resource while it waits for
    ``awaits``, which needs ``needed`` of it. So with less than ``minimum`` they hang, if as many run at once.
    ``present`` is what the cluster has, and ``hangs_at`` how many at once hang on it, 0 if that is unknown. The line is
    where the call waits. Without ``awaits``, the ``name`` is of actors that hold the resource as long as they live.
    """

    name: str
    resource: str
    at_once: int
    minimum: float
    present: float
    awaits: str = ""
    held: float = 0.0
    needed: float = 0.0
    hangs_at: int = 0
    file: str | None = None
    line: int | None = None
    source: str = ""


class Prediction(Model, frozen=True):
    """What could deadlock, and what that rests on.

    ``needs`` are how much of a resource the calls need, for smaller clusters. ``calls`` were examined, with ``waits``
    that are certain. ``without_source`` are the functions with calls whose source was not read, so that their waits are
    known only from samples. ``limits`` say what else is missing, in sentences.
    """

    possible: tuple[PossibleDeadlock, ...] = ()
    needs: tuple[CapacityNeed, ...] = ()
    calls: int = 0
    waits: int = 0
    without_source: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
