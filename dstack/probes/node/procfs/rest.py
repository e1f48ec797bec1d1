"""Reads a thread in a moment in which it rests, however short: of somebody who is woken again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.procfs import proc

T = TypeVar("T")


def while_at_rest(
    memory: ProcessMemory, thread: int, read: Callable[[], T], is_all_in_memory: Callable[[T], bool]
) -> tuple[str, T] | None:
    """The thread's mark and what was read, from memory that keeps its pages; None where it did not rest meanwhile.

    Where it takes too long to understand what is read, as with 100,000 refs, all of that is read at one go first.
    """
    before = mark_at_rest(memory.pid, thread)
    if not before:
        return None
    found = read()
    after = mark_at_rest(memory.pid, thread)
    if after == before:
        return before, found
    if not after or not is_all_in_memory(found):
        return None
    memory.read_again()
    return (after, read()) if mark_at_rest(memory.pid, thread) == after else None


def mark_at_rest(pid: int, thread: int) -> str:
    """The mark of a thread that is not running now, and empty of one that is, or has ended.

    In a moment shorter than a tick of the scheduler its counters say nothing of a thread that runs all the while. One
    that was at rest must be put on a CPU to move, and that is counted at once.
    """
    mark = proc.scheduler_mark(pid, thread)
    return "" if mark is None or proc.state(thread) in ("", "R") else mark
