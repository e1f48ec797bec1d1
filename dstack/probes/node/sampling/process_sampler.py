"""Samples the stacks of one process from its memory, and counts them."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import FrameChain, Step
from dstack.probes.node.cpython.python_process import PythonProcess, os_thread_id
from dstack.probes.node.group_calls import ProcessGroups
from dstack.probes.node.memory_reader import KnownProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.sampling.frame_copies import FrameReading, ThreadFrames
from dstack.probes.node.thread_stacks import CodePosition

Activity = Literal["running", "changed", "unchanged", "ended"]
"""``running``: on a CPU or ready for one. ``changed``: it ran meanwhile. ``unchanged``: it executed no instruction."""
_STAT_BYTES = 512
_COUNTER_BYTES = 64
_NOT_COUNTED = b"0 "
"""The beginning of ``schedstat`` if the kernel does not count: no thread has run for 0 ns."""


class ThreadActivity:
    """The activity of one thread. Keeps the file of its counters open, since opening takes longer than reading."""

    def __init__(self, pid: int, thread: int) -> None:
        folder = f"/proc/{pid}/task/{thread}"
        self._counters = _File(f"{folder}/schedstat")
        self._stat = _File(f"{folder}/stat")
        self._last = b""

    def poll(self) -> Activity:
        """The activity since the last call; the first call never returns ``unchanged``."""
        counters = self._counters.read(_COUNTER_BYTES)
        if counters and counters == self._last and not counters.startswith(_NOT_COUNTED):
            return "unchanged"
        self._last = counters
        stat = self._stat.read(_STAT_BYTES)
        if not stat:
            return "ended"
        at = stat.rfind(b")") + 2  # the name before it may contain anything
        return "running" if stat[at : at + 1] == b"R" else "changed"

    def close(self) -> None:
        """Close its files."""
        self._counters.close()
        self._stat.close()


class _File:
    """A file of the kernel's; it stays open, unless this process has too many open files."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size: int) -> bytes:
        """Its first ``size`` bytes; empty if the thread has ended."""
        try:
            if self._descriptor >= 0:
                return os.pread(self._descriptor, size, 0)
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            return b""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


LISTED_EVERY_S = 0.5
"""How often the list of threads is read: a thread that lives shorter may be missed."""
RANK_EVERY_S = 10.0
OUTER_LEFT_OUT = CodePosition("", "", "(outer frames left out)", 0)
"""In place of the outer frames of a stack that is too deep."""

Stack = tuple[CodePosition, ...]
"""Leaf first."""


@dataclass
class Samples:
    """What was counted in one round: samples by OS thread id, stack, and whether the thread ran.

    The figures are those of :class:`dstack.model.recording.Coverage`.
    """

    counts: Counter[tuple[int, Stack, bool]] = field(default_factory=Counter)
    wanted: int = 0
    taken: int = 0
    torn: int = 0
    cut: int = 0


@dataclass
class _Thread:
    os_thread_id: int
    activity: ThreadActivity
    frames: ThreadFrames
    stack: Stack | None = None
    """Its stack while it does not run."""


class ProcessSampler:
    """Samples one process; keeps its threads between rounds, but not its memory.

    Methods raise ``OSError`` or :class:`UnreadableMemory` where the process cannot be read.
    """

    def __init__(self, pid: int, known: KnownProcess) -> None:
        self.pid = pid
        self.known = known
        self.rank: int | None = None
        self.names: Mapping[int, str] = {}
        self.samples = Samples()
        self._threads: dict[int, _Thread] = {}
        self._listed_at = self._ranked_at = float("-inf")
        self._memory: ProcessMemory | None = None
        self._codes: _CodePositions | None = None

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """A round of samples, which are counted anew."""
        self.samples = Samples()
        with open_memory(self.pid) as self._memory:
            try:
                yield
            finally:
                if self._codes is not None:
                    self._codes.close()
                    self._codes = None  # code objects are validated in each round

    def close(self) -> None:
        """Close all files."""
        for thread in self._threads.values():
            thread.activity.close()
        self._threads.clear()

    def sample(self, weight: int, *, with_idle: bool) -> None:
        """Count the stack of each thread that runs, or of all threads, ``weight`` times."""
        if time.monotonic() - self._listed_at > LISTED_EVERY_S:
            self._list_threads()
        for thread_id, thread in list(self._threads.items()):
            activity = thread.activity.poll()
            if activity == "ended":
                self._drop(thread_id)
            elif activity == "running":
                thread.stack = None
                self._count(thread_id, thread, weight, is_running=True)
            elif with_idle:
                if activity == "changed":
                    thread.stack = None
                self._count(thread_id, thread, weight, is_running=False)
        self.samples.taken += weight

    def _count(self, thread_id: int, thread: _Thread, weight: int, *, is_running: bool) -> None:
        samples = self.samples
        stack = thread.stack
        if stack is None:
            try:
                stack = self._read(thread, weight)
            except UnreadableMemory:
                self._drop(thread_id)
                self._listed_at = float("-inf")
                return
            if stack is None:
                samples.torn += weight
                return
            if not is_running:
                thread.stack = stack
        if stack:
            samples.counts[thread.os_thread_id, stack, is_running] += weight

    def _read(self, thread: _Thread, weight: int) -> Stack | None:
        """The stack of a thread, None if it is torn."""
        assert self._memory is not None
        reading = thread.frames.read(self._memory)
        if reading is None:
            return None
        if reading.is_cut:
            self.samples.cut += weight
        return self._positions(reading)

    def _positions(self, reading: FrameReading) -> Stack | None:
        """The positions of its frames; None if one of them has no code object, so the reading is torn."""
        key = tuple(step[1:] for step in reading.steps)
        for _ in range(2):
            if self._codes is None:
                self._codes = _CodePositions(self.pid, self.known)
            stack = self._codes.stack(key)
            if stack is not None:
                return stack if reading.is_whole else (*stack, OUTER_LEFT_OUT)
            self._codes.close()
            self._codes = None  # it may have read the code object's page before the code object was made
        return None

    def _list_threads(self) -> None:
        """Find threads that began, and their names; drop those that ended."""
        now = time.monotonic()
        with open_memory(self.pid, keeps_pages=True) as memory:
            os_thread_ids = proc.threads(self.pid)
            learned = self.known.python.copy()
            process = PythonProcess(memory, self.known.interpreter, learned, os_thread_ids)
            states, layout = process.frames.threads, process.layout
            for thread_id in self._threads.keys() - states.keys():
                self._drop(thread_id)
            new = states.keys() - self._threads.keys()
            for thread_id in new:
                if tid := os_thread_id(memory, thread_id, os_thread_ids):
                    frames = ThreadFrames(states[thread_id], thread_id, layout)
                    self._threads[thread_id] = _Thread(tid, ThreadActivity(self.pid, tid), frames)
            if new:
                names = process.names()
                found = {one.os_thread_id: names.get(thread_id, "") for thread_id, one in self._threads.items()}
                self.names = {**self.names, **found}
            if self.rank is None and now - self._ranked_at > RANK_EVERY_S:
                self._ranked_at = now
                self.rank = ProcessGroups(process).memberships().rank
            self.known.python.keep(learned, is_certain=False)
        self._listed_at = now

    def _drop(self, thread_id: int) -> None:
        self._threads.pop(thread_id).activity.close()


class _CodePositions:
    """The positions of instructions, from one reading of a process's code objects."""

    def __init__(self, pid: int, known: KnownProcess) -> None:
        self._known = known.python
        self._learned = replace(known.python.copy(), pages=())
        self._memory = ProcessMemory(pid, keeps_pages=True)
        self._process = PythonProcess(self._memory, known.interpreter, self._learned)
        self._stacks: dict[tuple[tuple[int, int], ...], Stack] = {}

    def close(self) -> None:
        """Close the process's memory, and keep what was learned of its code."""
        self._memory.close()
        self._known.keep(self._learned, is_certain=False)

    def stack(self, key: tuple[tuple[int, int], ...]) -> Stack | None:
        """The positions of these code objects and instructions; None if one of them is no code object."""
        known = self._stacks.get(key)
        if known is None:
            steps: Sequence[Step] = [(0, *pair) for pair in key]
            chain = FrameChain(0, list(steps))
            frames = self._process.frames
            found = tuple(frame.position for frame in frames.stacks({0: chain})[0])
            if not frames.is_whole(chain):
                return None
            known = self._stacks[key] = found
        return known
