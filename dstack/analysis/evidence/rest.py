"""Rest: which executions only woke and slept again between the samples, and which processes did nothing.

A thread that sleeps, or waits with a timeout, rests if it has run in between and is at the same lines again: it is in a
loop without effect, unless it has written something or calls actors again and again. If it has not run, its timer is
still pending, and may end its wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import user_frame
from dstack.call_sites import EVENT_LOOP, UNTIL_COMPLETE
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import ACTOR_HANDLE, is_of_driver
from dstack.observed.processes import Coroutine, Process, Thread

IDLE_SHARE, IDLE_S = 0.05, 0.03
"""The CPU time of a process at rest: a share of one CPU, and what the answers to dstack take. A worker of Ray that does
nothing uses 0.25 % (Ray 2.60, 50 wake-ups a second), and a request for its tasks and refs 2 to 5 ms."""
COMPUTING_SHARE = 0.5
"""The share of one CPU that a process uses whose thread computes, where only one sample shows the thread on a CPU."""
LOOPS = (EVENT_LOOP.id, UNTIL_COMPLETE.id)


class Rest:
    """What the two samples show of executions and processes; without a second sample, nothing rests."""

    def __init__(self, first: SampleIndex, second: SampleIndex | None) -> None:
        self._first = first
        self._second = second

    def is_resting(self, vertex: Vertex) -> bool:
        """Whether a thread that sleeps, or waits with a timeout, is in a loop without effect.

        So is a coroutine of a library that sleeps at the same lines again, while the thread of its event loop has run.
        """
        before, after = self._first.execution_of(vertex), self._second.execution_of(vertex) if self._second else None
        if isinstance(before, Coroutine) and isinstance(after, Coroutine):
            return self._has_slept_again(vertex, before, after)
        if not isinstance(before, Thread) or not isinstance(after, Thread):
            return False
        return _has_looped(before, after) and not self._calls(vertex)

    def computes(self, vertex: Vertex) -> bool | None:
        """Whether a thread used a CPU between the samples, not only while it was read; None if it was not read twice.

        It is on a CPU in both samples, or in one of them while its process used as much as a thread that computes.
        """
        before, after = self._first.execution_of(vertex), self._second.execution_of(vertex) if self._second else None
        if before is after or not isinstance(before, Thread) or not isinstance(after, Thread):
            return None
        if before.on_cpu and after.on_cpu:
            return True
        return (before.on_cpu or after.on_cpu) and self._cpu_share(vertex.worker_id or "") >= COMPUTING_SHARE

    def sleeps_between(self, vertex: Vertex) -> bool:
        """Whether one of the samples shows a thread in ``time.sleep``."""
        found = (index.execution_of(vertex) for index in (self._first, self._second) if index)
        return any(isinstance(thread, Thread) and thread.sleeps for thread in found)

    def _cpu_share(self, worker_id: str) -> float:
        """The CPU time of a process as a share of one CPU between the samples, at least; 0 if unknown."""
        readings = self._readings(worker_id)
        over_s = self._over_s
        return (readings[1].cpu_s - readings[0].cpu_s) / over_s if readings and over_s > 0 else 0.0

    def _readings(self, worker_id: str) -> tuple[Process, Process] | None:
        """The readings of a process in both samples; None if it was not read twice, or is another one."""
        before, after = self._first.process(worker_id), self._second.process(worker_id) if self._second else None
        if before is None or after is None or before.started_at != after.started_at:
            return None
        return before, after

    @property
    def _over_s(self) -> float:
        """From the beginning of the first sample to the end of the second; 0 without one."""
        return self._second.sample.ended_s - self._first.sample.began_s if self._second else 0.0

    def _has_slept_again(self, vertex: Vertex, before: Coroutine, after: Coroutine) -> bool:
        if before.call or after.call or before.stack != after.stack or self._is_users(after) or self._second is None:
            return False
        was = self._first.loop_thread(vertex.worker_id or "", before)
        now = self._second.loop_thread(vertex.worker_id or "", after)
        return was is not None and now is not None and has_run(was, now)

    def _calls(self, vertex: Vertex) -> bool:
        """Whether a task, or the main code of a driver, calls actors again and again."""
        worker = self._first.workers.get(vertex.worker_id or "")
        if worker is None:
            return False
        calls = self._first.snapshot.repeated_calls
        if vertex.task_id is None and worker.is_driver:
            return any(is_of_driver(one.parent_task_id) and one.job_id == worker.job_id for one in calls)
        callers = (vertex.task_id, ACTOR_HANDLE + worker.actor_id if worker.actor_id else None)
        return any(one.parent_task_id in callers for one in calls)

    def are_idle(self, worker_ids: Collection[str]) -> bool:
        """Whether these processes were read twice and did nothing meanwhile, nor those below them or at other ends."""
        return all(map(self._is_idle, worker_ids))

    def are_unused(self, worker_ids: Collection[str]) -> bool:
        """Whether none of these processes used a CPU to speak of, as far as they were read twice."""
        return not any(map(self._is_used, worker_ids))

    def _is_used(self, worker_id: str) -> bool:
        readings = self._readings(worker_id)
        return readings is not None and not self._is_unused(*(one.cpu_s for one in readings))

    def _is_idle(self, worker_id: str) -> bool:
        readings = self._readings(worker_id)
        if readings is None:
            return False
        before, after = readings
        if after.children_left_out or {one.pid for one in before.children} != {one.pid for one in after.children}:
            return False
        pairs = list(zip(_by_pid(before), _by_pid(after), strict=True))
        if not all(self._is_unused(one.cpu_s, other.cpu_s) for one, other in pairs):
            return False
        earlier, later = _others(before), _others(after)
        if not all(self._is_unused(earlier.get(pid, 0.0), cpu_s) for pid, cpu_s in later.items()):
            return False
        return not any(self._may_child_act(*children) for children in pairs[1:])

    def _is_unused(self, before_s: float, after_s: float) -> bool:
        """Whether a process used no CPU to speak of."""
        return after_s - before_s <= IDLE_S + IDLE_SHARE * self._over_s

    def _may_child_act(self, before: Process, after: Process) -> bool:
        """Whether a thread of a child process ran, or may act by itself.

        A thread that runs an event loop does what its coroutines do: one in the user's code that does not wait may act.
        """
        earlier = {thread.os_thread_id: thread for thread in before.threads}
        loops = [one for one in after.threads if one.call and one.call.site in LOOPS and not one.on_cpu]
        if not after.threads or (loops and not after.coroutines_read):
            return True
        others = (one for one in after.threads if one not in loops)
        return any(self._may_act(earlier.get(one.os_thread_id), one) for one in others) or any(
            one.call is None and self._is_users(one) for one in after.coroutines
        )

    def _is_users(self, execution: Thread | Coroutine) -> bool:
        return user_frame(self._first.snapshot.frames_of(execution)) is not None

    def _may_act(self, before: Thread | None, after: Thread) -> bool:
        is_library = bool(self._first.snapshot.frames_of(after)) and not self._is_users(after)
        if before is None or after.on_cpu:
            return True
        if after.call is not None and after.call.timeout_s is None:
            return has_run(before, after)
        return not is_library and not _has_looped(before, after)


def has_run(before: Thread, after: Thread) -> bool:
    """Whether a thread has run between two readings, as far as the kernel counted it."""
    return before.slices is not None and after.slices is not None and before.slices != after.slices


def _has_looped(before: Thread, after: Thread) -> bool:
    """Whether a thread has run and is in the same sleep, or in the same wait with a timeout, again."""
    is_timed = (before.sleeps and after.sleeps) or all(
        one.call is not None and one.call.timeout_s is not None for one in (before, after)
    )
    has_written = before.written_bytes != after.written_bytes
    return is_timed and before.stack == after.stack and has_run(before, after) and not has_written


def _others(process: Process) -> dict[int, float]:
    """The CPU time of the processes of no job at the other ends of what a process waits on, by pid."""
    calls = (thread.call for one in _by_pid(process) for thread in one.threads)
    ends = (end for call in calls if call is not None for end in call.ends)
    return {holder.pid: holder.cpu_s for end in ends for holder in end.holders if holder.name}


def _by_pid(process: Process) -> Iterator[Process]:
    return iter((process, *sorted(process.children, key=lambda child: child.pid)))
