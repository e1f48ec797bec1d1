"""Proof, from the kernel's own counters, that a thread did not run for a while.

A stack and the objects it refers to are read while the target goes on. Where the scheduler's counters of a thread are
the same before and after, the thread ran not one instruction in between, so all that was read of it is one
consistent state - without stopping it.
"""

from __future__ import annotations

from dstack.probes.node.procfs import proc

Activity = dict[int, str]
"""OS thread id to an opaque mark that changes whenever the thread runs."""


def activity(pid: int) -> Activity:
    """The marks of all threads of a process; threads that end meanwhile are left out."""
    marks = ((thread, proc.scheduler_mark(pid, thread)) for thread in proc.threads(pid))
    return {thread: mark for thread, mark in marks if mark is not None}


def unmoved(before: Activity, after: Activity) -> set[int]:
    """The threads that did not run between the two."""
    return {thread for thread, mark in before.items() if mark and after.get(thread) == mark}
