"""Proof, from the kernel's own counters, that a thread did not run between two points in time.

A stack and the objects it refers to are read while the target runs. If the scheduler's counters of a thread are the
same before and after, the thread ran no instruction in between. So its reading is consistent, without a pause.

A thread may also run during every reading, and be in the same call each time. Ray wakes a thread that waits for refs
every second. On a host so busy that each reading takes a second, such a thread is never read while it does not run.
Neither its dependencies nor its progress is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from dstack.call_sites import kind_of
from dstack.observed.calls import REF_CALLS, Call, Unreadable
from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.procfs import proc
from dstack.probes.node.thread_stacks import AnyThread

Marks = dict[int, str]
"""OS thread id to an opaque mark that changes whenever the thread runs."""

T = TypeVar("T")
WOKEN_EVERY_S = 1.0
"""How often Ray wakes a thread that waits for refs though no value has come; seen on Ray 2.46 and 2.60."""
UNPROVEN = "its thread ran during every reading, as on an overloaded host"


def marks_of(pid: int, threads: Collection[int] = ()) -> Marks:
    """The marks of these threads of a process, or of all of them; ended threads are left out."""
    marks = ((thread, proc.scheduler_mark(pid, thread)) for thread in threads or proc.threads(pid))
    return {thread: mark for thread, mark in marks if mark is not None}


def marks_off_cpu(pid: int, threads: Collection[int] = ()) -> Marks:
    """The marks at the start of a reading; empty, so never unchanged, for running threads; see :func:`mark_off_cpu`."""
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


def unproven_call(readings: Sequence[tuple[AnyThread, Call | None]]) -> Call | None:
    """The call, without its dependencies, if all readings of a thread show the same one at the same lines.

    A thread that makes progress is soon in a call for other refs.
    """
    lines = [_lines(thread) for thread, _ in readings]
    calls = [call for _, call in readings]
    first = calls[0] if calls else None
    if first is None or not _is_woken(first) or any(one != first for one in calls) or any(x != lines[0] for x in lines):
        return None
    return unread(first)


def unread(call: Call | None) -> Call | None:
    """The call without its dependencies."""
    return Call(site=call.site, frame=call.frame, need=Unreadable(reason=UNPROVEN)) if call else None


def _is_woken(call: Call) -> bool:
    """Whether only Ray wakes the thread; one with a short timeout wakes by itself, and calls again."""
    is_long = call.timeout_s is None or call.timeout_s > WOKEN_EVERY_S
    return kind_of(call) in REF_CALLS and not isinstance(call.need, Unreadable) and is_long


def _lines(thread: AnyThread) -> list[tuple[str, int]]:
    return [(frame.position.file, frame.position.line) for frame in thread.frames]
