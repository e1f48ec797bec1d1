"""Proof, from the kernel's own counters, that a thread did not run for a while.

A stack and the objects it refers to are read while the target goes on. Where the scheduler's counters of a thread are
the same before and after, the thread ran not one instruction in between, so all that was read of it is one
consistent state - without stopping it.
"""

from __future__ import annotations

import contextlib
import os

Activity = dict[int, str]
"""OS thread id to an opaque mark that changes whenever the thread runs."""


def activity(pid: int) -> Activity:
    """The marks of all threads of a process; threads that end meanwhile are left out."""
    marks: Activity = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                marks[int(name)] = mark_of(f"/proc/{pid}/task/{name}")
    return marks


def unmoved(before: Activity, after: Activity) -> set[int]:
    """The threads that did not run between the two."""
    return {thread for thread, mark in before.items() if mark and after.get(thread) == mark}


def mark_of(task: str) -> str:
    """A thread's, by its folder: its time on CPU in ns and number of timeslices, or else of context switches."""
    with open(f"{task}/schedstat", encoding="ascii") as file:
        mark = file.read()
    return mark if mark.split()[:1] != ["0"] else _switches(task)


def _switches(task: str) -> str:
    with open(f"{task}/status", encoding="ascii", errors="replace") as file:
        lines = file.read().splitlines()
    if any(line.startswith("State:") and "R" in line.split()[1] for line in lines):
        return ""
    return " ".join(line.split()[-1] for line in lines if "ctxt_switches" in line)
