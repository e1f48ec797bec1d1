"""Reads a process through py-spy: where its memory cannot be read or interpreted, and for exact or native stacks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dstack.probes.node.blocked_calls.frames_only import shallow_calls
from dstack.probes.node.blocked_calls.unproven import unproven_call
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.process import os_thread_id
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.pyspy.runner import PySpy, SudoFailed
from dstack.probes.node.reading import Problem, ProcessReading, Request, ThreadReading
from dstack.probes.node.stability import marks_of, marks_off_cpu, unchanged
from dstack.probes.node.stacks.origins import Origins, role_of
from dstack.probes.node.threads import PythonThread, ShownFrame
from dstack.probes.node.wire import CallData

ATTEMPTS = 3
DUMP_TIMEOUT_S = 5.0
RETRY_S = 0.005

Threads = list[PythonThread[ShownFrame]]


class PySpyReader:
    """Readings of one process through one py-spy. Methods raise :class:`DumpFailed`."""

    def __init__(self, tool: PySpy, request: Request, origins: Origins) -> None:
        self._tool = tool
        self._request = request
        self._origins = origins

    def read(self, problem: Problem, *, has_calls: bool) -> ProcessReading:
        """The threads without a pause; ``problem`` is why their memory was not read.

        With ``has_calls``, their calls of Ray are recognised from their frames alone.
        """
        readings: list[tuple[Threads, dict[int, CallData]]] = []
        stable: set[int] = set()
        for attempt in range(ATTEMPTS):
            before = marks_off_cpu(self._request.pid)
            try:
                threads = self._with_os_ids(self._dump(blocking=False), before)
            except DumpFailed as error:
                if error.is_denied or isinstance(error, SudoFailed) or attempt == ATTEMPTS - 1:
                    raise
                continue
            readings.append((threads, shallow_calls(threads) if has_calls else {}))
            stable = unchanged(before, marks_of(self._request.pid))
            if stable.issuperset(readings[-1][1]):
                break
            time.sleep(RETRY_S * attempt)
        found = [self._reading(thread, readings, stable) for thread in readings[-1][0]]
        return ProcessReading(threads=found, access=self._tool.access, problems=[problem])

    def with_exact_stacks(self, reading: ProcessReading) -> ProcessReading:
        """The reading, with exact stacks of the threads that ran, from a dump that stops the process.

        With native frames, the stacks of all threads. A failed dump is retried: a process may be stopped at a moment
        when py-spy cannot follow its frames (once in 2,000 dumps of a busy CPython 3.13), or another profiler has it.
        """
        native = self._request.options["native"]
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            try:
                dumped = self._dump(blocking=True)
                break
            except DumpFailed:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(RETRY_S)
        paused_ms = (time.monotonic() - began) * 1000
        known = {one.thread.os_thread_id: one for one in reading.threads}
        threads = [self._exact(thread, known.get(thread.os_thread_id), native) for thread in dumped]
        return replace(reading, threads=threads, paused_ms=paused_ms)

    def _exact(self, thread: PythonThread[ShownFrame], known: ThreadReading | None, native: bool) -> ThreadReading:
        if known is not None and known.is_stable and not native:
            return known
        shown = [frame.values for frame in thread.frames] if self._request.options["locals"] else ()
        task_id = known.task_id if known else None
        exact = ThreadReading(thread, self._role(thread, task_id), task_id=task_id, locals=shown)
        if known is None or not known.is_stable:
            call = known.call if known and known.call and _leaf(known) == _leaf(exact) else None
            return replace(exact, call=call)
        return replace(exact, call=_relocated(known.call, thread), is_stable=True, sleeps=known.sleeps)

    def _reading(
        self,
        thread: PythonThread[ShownFrame],
        readings: Sequence[tuple[Threads, Mapping[int, CallData]]],
        stable: set[int],
    ) -> ThreadReading:
        tid = thread.os_thread_id
        is_stable = tid in stable
        if is_stable:
            call = readings[-1][1].get(tid)
        else:
            seen = [(one, calls.get(tid)) for threads, calls in readings for one in threads if one.os_thread_id == tid]
            call = unproven_call(seen)
        return ThreadReading(
            thread=replace(thread, is_running=thread.is_running and not is_stable),
            role=self._role(thread, None),
            call=call,
            is_stable=is_stable,
            is_torn=not is_stable and thread.is_running,
            locals=[frame.values for frame in thread.frames] if self._request.options["locals"] else (),
        )

    def _role(self, thread: PythonThread[ShownFrame], task_id: str | None) -> str:
        request = self._request
        return role_of(thread, task_id, pid=request.pid, is_driver=request.is_driver, origins=self._origins)

    def _with_os_ids(self, threads: Threads, known: Collection[int]) -> Threads:
        """py-spy finds the OS ids of threads only with a pause on CPython 3.10 and earlier; seen on 0.4.3."""
        if all(thread.os_thread_id for thread in threads):
            return threads
        with contextlib.suppress(OSError), open_memory(self._request.pid) as memory:
            return [
                one if one.os_thread_id else replace(one, os_thread_id=os_thread_id(memory, one.thread_id, known))
                for one in threads
            ]
        return threads

    def _dump(self, *, blocking: bool) -> Threads:
        left_s = min(DUMP_TIMEOUT_S, self._request.deadline - time.monotonic())
        if left_s <= 0:
            raise DumpFailed("no time was left to read it", cause="timeout")
        native = blocking and self._request.options["native"]
        return self._tool.dump(self._request.pid, blocking=blocking, native=native, timeout_s=left_s)


def _relocated(call: CallData | None, thread: PythonThread[ShownFrame]) -> CallData | None:
    """The call with the index of its frame in this stack, where native frames come before the Python leaf."""
    if call is None:
        return None
    native = next((index for index, frame in enumerate(thread.frames) if not frame.position.module), 0)
    return {**call, "frame": call["frame"] + native}


def _leaf(reading: ThreadReading) -> tuple[str, int]:
    position = reading.thread.frames[0].position if reading.thread.frames else None
    return (position.file, position.line) if position else ("", 0)
