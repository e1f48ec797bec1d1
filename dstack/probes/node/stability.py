"""Proof, from the kernel's own counters, that a thread did not run between two points in time.

A stack and the objects it refers to are read while the target runs. If the scheduler's counters of a thread are the
same before and after, the thread ran no instruction in between. So its reading is consistent, without a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.procfs import proc

Marks = dict[int, str]
"""OS thread id to an opaque mark that changes whenever the thread runs."""

T = TypeVar("T")


def marks_of(pid: int, threads: Collection[int] = ()) -> Marks:
    """The marks of these threads of a process, or of all of them; ended threads are left out."""
    marks = ((thread, proc.scheduler_mark(pid, thread)) for thread in threads or proc.threads(pid))
    return {thread: mark for thread, mark in marks if mark is not None}


def marks_off_cpu(pid: int, threads: Collection[int] = ()) -> Marks:
    """The marks with which a reading begins: empty, so never unchanged, of threads that run; see mark_at_rest."""
    return {thread: mark_off_cpu(pid, thread) for thread in threads or proc.threads(pid)}


def unchanged(before: Mapping[int, str], after: Mapping[int, str]) -> set[int]:
    """The threads that did not run between the two."""
    return {thread for thread, mark in before.items() if mark and after.get(thread) == mark}


def mark_off_cpu(pid: int, thread: int) -> str:
    """The mark of a thread that does not run now; empty for one that runs, or has ended.

    Within a tick of the scheduler its counters do not change for a thread that runs all the time. A thread that was
    off the CPU must be scheduled to run, and that is counted at once.
    """
    mark = proc.scheduler_mark(pid, thread)
    return "" if mark is None or proc.thread_state(pid, thread) in ("", "R") else mark


def read_off_cpu(
    memory: ProcessMemory, thread: int, read: Callable[[], T], is_all_in_memory: Callable[[T], bool]
) -> tuple[bool, T]:
    """Whether the thread did not run during ``read``, and its result. The memory must keep its pages.

    If the thread ran, as when decoding 100,000 refs takes long, all pages are read again at once, and then decoded.
    """
    before = mark_off_cpu(memory.pid, thread)
    found = read()
    after = mark_off_cpu(memory.pid, thread)
    if before and after == before:
        return True, found
    if after and is_all_in_memory(found):
        memory.read_again()
        was_off_cpu = mark_off_cpu(memory.pid, thread) == after
        again = read()
        return was_off_cpu and not memory.was_short, again
    return False, found
