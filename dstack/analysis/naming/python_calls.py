"""Python calls that a target may wait in, by the names that snapshots give them, such as ``queue.Queue.get``.

These names are data from the target, so they are matched by their ends. What is not in the table is an unknown call.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PythonCall:
    """A call by the end of its name; ``ended_by`` names what ends it, and idle services may be in it or not."""

    name: str
    ended_by: str | None = None
    may_be_idle: bool = True


CALLS = (
    PythonCall("Event.wait", "a call of Event.set"),
    PythonCall("Condition.wait", "a call of Condition.notify"),
    PythonCall("Barrier.wait", "the other parties of the barrier", may_be_idle=False),
    PythonCall("Semaphore.acquire", "a release of the semaphore", may_be_idle=False),
    PythonCall("Queue.get", "an item in the queue"),
    PythonCall("Queue.put", "room in the queue", may_be_idle=False),
    PythonCall("Queue.join", "Queue.task_done for each item", may_be_idle=False),
    PythonCall(".acquire", may_be_idle=False),
    PythonCall(".join", may_be_idle=False),
    PythonCall(".put", may_be_idle=False),
)


def ended_by(call: str) -> str | None:
    """``a call of Event.set``: what ends a call, None if it is unknown. The call may be ``NAME of OBJECT``."""
    known = _find(call.partition(" of ")[0])
    return known.ended_by if known else None


def may_be_idle(call: str) -> bool:
    """Whether an idle service may be in the call, until input from outside the process ends it."""
    known = _find(call)
    return known is None or known.may_be_idle


def lock_in_words(call: str | None) -> str:
    """``a semaphore`` or ``a lock``, by the name of the call that acquires it."""
    return "a semaphore" if "Semaphore" in (call or "") else "a lock"


def with_statement(call: str | None) -> str:
    """``a with`` or ``an async with``, the statement that acquires a lock by this call."""
    return "an async with" if (call or "").startswith("asyncio.") else "a with"


def is_of_compiled_graph(call: str | None) -> bool:
    """Whether a driver waits in this call for a result of a compiled graph, or for room for an input."""
    return (call or "").startswith("CompiledDAG")


def _find(name: str) -> PythonCall | None:
    return next((known for known in CALLS if name.endswith(known.name)), None)
