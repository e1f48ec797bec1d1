"""The last reading of a process, of which the next round of a profile takes over what has not changed.

What a thread does changes only while it runs, which the scheduler counts. What it waits for in its own process may
also be changed by other threads. So if any thread ran, the threads with such waits are read again, too. A round tells
where time goes; it proves no wait, so :func:`can_reuse` excludes samples that do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dstack.call_sites import kind_of
from dstack.observed.calls import REF_CALLS
from dstack.probes.node.cpython.memory_frames import Step
from dstack.probes.node.target_process import ProcessReading, ThreadReading
from dstack.probes.node.thread_stacks import TextFrame, is_event_loop
from dstack.probes.node.wire import SampleOptions

KEPT_S = 5.0
"""How long a reading is reused. Threads of C++ may call Python at any time, and leave no trace in Python's threads."""


def can_reuse(options: SampleOptions) -> bool:
    """Whether a sample with these options may take over threads of an earlier one; never if it may prove a wait."""
    return options.get("reuse", False) and not options.get("reach", True)


@dataclass(frozen=True)
class KeptReading:
    """A reading that began at ``began``, a ``time.monotonic()``, without the memory that it was read from.

    ``marks`` are those of its threads by OS id, empty for one that ran meanwhile. ``states`` are the addresses of its
    thread states by Python's id, ``unreadable`` the reasons of unread waits by OS id. ``with_locals``: it has locals.
    ``pages`` are those from which the last threads were read again, ``steps`` the frames of threads by Python's id.
    """

    reading: ProcessReading
    marks: Mapping[int, str]
    states: Mapping[int, int]
    unreadable: Mapping[int, str]
    with_locals: bool
    began: float
    steps: Mapping[int, Sequence[Step]]
    pages: Collection[int] = ()

    @classmethod
    def of(
        cls,
        reading: ProcessReading,
        before: Mapping[int, str],
        states: Mapping[int, int],
        unreadable: Mapping[int, str],
        steps: Mapping[int, Sequence[Step]],
        *,
        with_locals: bool,
        began: float,
    ) -> KeptReading:
        """A reading to keep; ``before`` are the marks of its threads when it began."""
        reading = replace(reading, threads=[_without_memory(one) for one in reading.threads])
        return cls(reading, _marks(reading, before), states, unreadable, with_locals, began, steps)

    def is_for(self, options: SampleOptions, now: float) -> bool:
        """Whether a sample with these options may use it at this ``time.monotonic()``."""
        return now < self.began + KEPT_S and self.with_locals == options["locals"]

    def ran(self, marks: Mapping[int, str]) -> list[ThreadReading] | None:
        """The threads that have run, by their current marks; None if an event loop did, which has many coroutines."""
        found = [one for one in self.reading.threads if not self._is_unmoved(one, marks)]
        return None if any(map(self._runs_loop, found)) else found

    def to_read(self, ran: Collection[ThreadReading]) -> list[ThreadReading]:
        """The threads to read again if these have run, and have done something."""
        inside = [one for one in self.reading.threads if _waits_inside(one) and not self._runs_loop(one)] if ran else []
        return [one for one in self.reading.threads if one in ran or one in inside or _wakes(one)]

    def idle(self, threads: Iterable[ThreadReading]) -> dict[int, int]:
        """The addresses of the states of those threads that execute no task: Ray wakes them, and they run no Python.

        While the frames of such a thread are the same, at the same instructions, it has nothing else to show.
        """
        of_ray = (one for one in threads if one.role in ("task", "ray") and not (one.call or one.task_id))
        idle = (one.thread.thread_id for one in of_ray)
        return {thread_id: self.states[thread_id] for thread_id in idle if thread_id in self.states}

    def with_marks(self, marks: Mapping[int, str]) -> KeptReading:
        """It at a later time, at which no thread shows anything else."""
        return replace(self, marks=_marks(self.reading, marks))

    def _is_unmoved(self, one: ThreadReading, marks: Mapping[int, str]) -> bool:
        mark = self.marks.get(one.thread.os_thread_id)
        return bool(mark) and marks.get(one.thread.os_thread_id) == mark

    def _runs_loop(self, one: ThreadReading) -> bool:
        loops = self.reading.loops
        of_coroutines = {coroutine.thread_id for coroutine in loops.coroutines} if loops else set()
        return is_event_loop(one.thread) or one.thread.thread_id in of_coroutines

    def with_threads(
        self,
        again: Mapping[int, ThreadReading | None],
        marks: Mapping[int, str],
        pages: Collection[int],
        steps: Mapping[int, Sequence[Step]],
    ) -> KeptReading:
        """It with new readings of some threads by Python's id, made from these pages; None for a thread that ended."""
        threads = [again.get(one.thread.thread_id, one) for one in self.reading.threads]
        reading = replace(self.reading, threads=[_without_memory(one) for one in threads if one])
        return replace(self, reading=reading, marks=_marks(reading, marks), pages=pages, steps={**self.steps, **steps})


def _marks(reading: ProcessReading, marks: Mapping[int, str]) -> dict[int, str]:
    ids = ((one.thread.os_thread_id, one.is_stable) for one in reading.threads)
    return {thread: marks.get(thread, "") if is_stable else "" for thread, is_stable in ids}


def _without_memory(one: ThreadReading) -> ThreadReading:
    return replace(one, thread=replace(one.thread, frames=[TextFrame(frame.position) for frame in one.thread.frames]))


def _wakes(one: ThreadReading) -> bool:
    """Whether its reading says how long it will sleep, which changes without it."""
    return one.sleep_left_s is not None or one.timer is not None


def _waits_inside(one: ThreadReading) -> bool:
    """Whether other threads may have changed what its call waits for; refs are its own."""
    return one.call is not None and kind_of(one.call) not in REF_CALLS


def are_alike(before: Sequence[ProcessReading], now: Sequence[ProcessReading]) -> bool:
    """Whether two readings of a process and its children show the same calls and stacks."""
    return len(before) == len(now) and all(map(_is_alike, before, now))


def _is_alike(before: ProcessReading, now: ProcessReading) -> bool:
    if before is now:
        return True
    are_loops = before.loops is now.loops or not (now.loops and (now.loops.coroutines or now.loops.on_threads))
    return are_loops and [*map(_shown, before.threads)] == [*map(_shown, now.threads)]


def _shown(one: ThreadReading) -> object:
    """What a profile shows of a thread."""
    positions = [frame.position for frame in one.thread.frames]
    return one.thread.thread_id, one.task_id, one.call, one.sleeps, one.is_torn, one.thread.is_running, positions
