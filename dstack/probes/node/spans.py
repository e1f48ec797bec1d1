"""The spans that a program marks with ``dstack.span``: the open ones, and the last finished ones.

Seen on CPython 3.10 to 3.15. :mod:`dstack.spans` keeps them in the memory of the process.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.observed.processes import FinishedSpan, Span
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.ray_memory import Contexts
from dstack.probes.node.thread_stacks import ASYNCIO, is_event_loop

MODULE, OPEN, FINISHED = "dstack.spans", "OPEN", "FINISHED"
VARIABLE, TYPE_NAME = "dstack.span", "span"
MAX_OPEN = 2_000
"""The most open spans of a process that are read: those that were entered last."""
MAX_DEPTH = 32
"""The most open spans of one thread or coroutine: the innermost ones."""
MAX_CHAIN = 256
MAX_NAME = 64
FIELDS = 4
"""Name, begin, end and thread of a finished span."""


def clock_ahead_s() -> float:
    """The Unix time at the zero of ``time.perf_counter``, which is ``time.monotonic`` on Linux."""
    return time.time() - time.monotonic()


@dataclass(frozen=True, slots=True)
class _OpenSpan:
    """An open span: its begin by the clock, and the Python id of its thread."""

    name: str
    began_s: float
    thread_id: int


class Spans:
    """The spans of one process in one reading of its memory.

    A span that is malformed, as one that is just being entered, is left out; nothing is raised. ``ahead_s`` are the
    Unix seconds at the zero of the clock: spans that are the same in two readings with the same value are equal.
    """

    def __init__(self, process: PythonProcess, ahead_s: float | None = None) -> None:
        self._process = process
        self._objects = process.objects
        self._contexts = Contexts(process)
        self._names: dict[int, str] = {}
        self._ahead_s = clock_ahead_s() if ahead_s is None else ahead_s

    @cached_property
    def _open(self) -> Mapping[int, _OpenSpan]:
        """The open spans by address, in the order in which they were entered."""
        found: dict[int, _OpenSpan] = {}
        with contextlib.suppress(UnreadableMemory):
            table = self._process.modules.lookup(MODULE, OPEN)
            entries = self._objects.entries(table) if table else []
            for address, _ in entries[-MAX_OPEN:]:
                with contextlib.suppress(UnreadableMemory):
                    found[address] = self._read(address)
        return found

    def _read(self, address: int) -> _OpenSpan:
        self._objects.expect(address, TYPE_NAME)
        slots = self._objects.slots(address)
        if self._objects.truth(slots.get("is_open", 0)) is not True:
            raise UnreadableMemory("a span that is not open")
        name, began_s, thread_id = (slots.get(name, 0) for name in ("name", "began", "thread"))
        return _OpenSpan(self._name(name), self._time(began_s), self._integer(thread_id))

    def _time(self, address: int) -> float:
        """A time of the clock, which is not in the future."""
        found = self._objects.number(address)
        if not isinstance(found, float) or not 0 <= found <= time.monotonic():
            raise UnreadableMemory("not a time of the clock")
        return found

    def _integer(self, address: int) -> int:
        self._objects.expect(address, "int")
        return int(self._objects.number(address) or 0)

    def _name(self, address: int) -> str:
        """A name, which many spans share."""
        if address not in self._names:
            self._names[address] = self._objects.text(address, MAX_NAME)
        return self._names[address]

    def of_thread(self, thread: MemoryThread) -> tuple[Span, ...]:
        """The open spans of a thread, the outermost first.

        A thread that runs an event loop has entered those of its coroutines too: of these only those count whose
        ``with`` block its frames show.
        """
        own = [address for address, one in self._open.items() if one.thread_id == thread.thread_id]
        if not own:
            return ()
        frames = self._frames_of(own, thread.frames)
        runs_loop = is_event_loop(thread) or any(ASYNCIO in frame.position.file for frame in thread.frames)
        return self._observed([one for one in own if one in frames or not runs_loop], frames)

    def of_coroutine(self, task: int, frames: Sequence[MemoryFrame]) -> tuple[Span, ...]:
        """The open spans in the context of an asyncio task, the outermost first, also those that it was created in."""
        if not self._open:
            return ()
        found = [one for one in self._entered_in(task) if one in self._open][::-1]
        return self._observed(found, self._frames_of(found, frames)) if found else ()

    def _entered_in(self, task: int) -> list[int]:
        """The spans that the context of a task has, the innermost first, also some that have ended since."""
        found: dict[int, None] = {}
        with contextlib.suppress(UnreadableMemory):
            address = self._contexts.value(task, VARIABLE)
            while address not in found and len(found) < MAX_CHAIN and self._objects.is_a(address, TYPE_NAME):
                found[address] = None
                address = self._objects.slots(address).get("outer", 0)
        return list(found)

    def _frames_of(self, spans: Collection[int], frames: Sequence[MemoryFrame]) -> dict[int, int]:
        """The indices of the frames that show the ``with`` blocks of these spans."""
        found: dict[int, int] = {}
        for index, frame in enumerate(frames):
            with contextlib.suppress(UnreadableMemory):
                found.update((one, index) for one in self._process.frames.held(frame) if one in spans)
        return found

    def _observed(self, spans: Sequence[int], frames: Mapping[int, int]) -> tuple[Span, ...]:
        return tuple(
            Span(name=self._open[one].name, began_at=self._at(self._open[one].began_s), frame=frames.get(one))
            for one in spans[-MAX_DEPTH:]
        )

    def _at(self, clock_s: float) -> float:
        """A time of the clock in Unix seconds."""
        return round(clock_s + self._ahead_s, 6)

    def finished(self, threads: Iterable[MemoryThread]) -> tuple[FinishedSpan, ...]:
        """The last spans that have ended, in the order of their ends; ``threads`` are those of the process."""
        os_ids = {thread.thread_id: thread.os_thread_id for thread in threads}
        return tuple(dict.fromkeys(self._finished(os_ids)))

    def _finished(self, os_ids: Mapping[int, int]) -> Iterator[FinishedSpan]:
        with contextlib.suppress(UnreadableMemory):
            ring = self._process.modules.lookup(MODULE, FINISHED)
            addresses = list(itertools.islice(self._objects.deque_items(ring), MAX_OPEN)) if ring else []
            self._process.memory.prefetch(addresses)
            for address in addresses:
                with contextlib.suppress(UnreadableMemory):
                    yield self._finished_span(address, os_ids)

    def _finished_span(self, address: int, os_ids: Mapping[int, int]) -> FinishedSpan:
        items = self._objects.items(address, FIELDS + 1)
        if len(items) != FIELDS:
            raise UnreadableMemory(f"a span of {len(items)} fields")
        name, began_s, ended_s, thread_id = items
        began_at, ended_at = self._at(self._time(began_s)), self._at(self._time(ended_s))
        if ended_at < began_at:
            raise UnreadableMemory("a span that ends before it begins")
        return FinishedSpan(
            name=self._name(name),
            began_at=began_at,
            ended_at=ended_at,
            os_thread_id=os_ids.get(self._integer(thread_id)) or None,
        )
