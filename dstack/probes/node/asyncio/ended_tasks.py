"""Asyncio tasks that ended with an exception or were cancelled: with what, at which line, and what their code held.

Only those that the program still refers to can be read, as one in an attribute: asyncio itself has weak references.
Such a task may be what should have ended a wait of its process. Its traceback keeps its frames, and these their locals.
Seen on CPython 3.10 to 3.13; from 3.14 on, a task leaves asyncio's lists when it ends, so none is found.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.probes.node.asyncio.await_chains import GENERATORS
from dstack.probes.node.asyncio.event_loops import EventLoops
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.cpython.references import References
from dstack.probes.node.cpython.values import text_of
from dstack.probes.node.waits.reachable_objects import MAX_FOLLOWED, variables_of

MAX_TASKS = 8
"""Failed tasks come first."""
MAX_FRAMES = 200
MAX_MESSAGE = 200
MAX_DEPTH = 5
"""References from a local to what is awaited: ``self``, its ``queue``, the queue's items, a request, its future."""
MAX_EXAMINED = 2_000
"""The objects of all tasks whose references are followed."""
AFTER_CALLBACKS = 8
"""A future has its exception behind its list of callbacks."""
EXCEPTION_FIELDS, EXCEPTION_WORDS = 16, 6
"""Where an exception has its dict, its arguments, its notes (from 3.11 on) and its traceback."""
EXCEPTION, CANCELLED = "BaseException", "CancelledError"


@dataclass(frozen=True)
class TaskEnd:
    """One such task. ``frames`` are those of its traceback, innermost first; ``held`` are objects that these reach."""

    address: int
    name: str
    function: str
    error: str
    message: str
    is_cancelled: bool
    frames: Sequence[MemoryFrame]
    held: Collection[int] = ()


class TaskEnds:
    """The asyncio tasks of one process that failed or were cancelled. Nothing is raised."""

    def __init__(self, process: PythonProcess, loops: EventLoops, name_of: Callable[[int], str]) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._frames = process.frames
        self._layout = process.layout
        self._references = References(process)
        self._loops = loops
        self._name_of = name_of
        self._examined = 0

    def read(self, awaited: Collection[int]) -> list[TaskEnd]:
        """The first such tasks; ``held`` is the part of the ``awaited`` objects that their code could reach."""
        with self._memory.temporary():
            exceptions = self._exceptions()
            return list(self._all_ended(exceptions, frozenset(awaited)))

    def _exceptions(self) -> dict[int, int]:
        """The exceptions of the first tasks, 0 for a cancelled one without any, by the task."""
        failed: dict[int, int] = {}
        cancelled: dict[int, int] = {}
        for task in self._loops.ended:
            with contextlib.suppress(UnreadableMemory):
                if self._loops.is_cancelled(task):
                    cancelled[task] = self._cancellation(task) if len(cancelled) < MAX_TASKS else 0
                elif exception := self._exception(task):
                    failed[task] = exception
        return dict(itertools.islice({**failed, **cancelled}.items(), MAX_TASKS))

    def _exception(self, task: int) -> int:
        word = self._memory.pointer(task + self._layout.future_callbacks + AFTER_CALLBACKS)
        return word if word and self._objects.is_kind_of(word, EXCEPTION) else 0

    def _cancellation(self, task: int) -> int:
        """What cancelled a task, which is in another place in each version."""
        return next((word for word in self._loops.fields(task) if self._objects.is_a(word, CANCELLED)), 0)

    def _all_ended(self, exceptions: Mapping[int, int], awaited: Collection[int]) -> Iterator[TaskEnd]:
        for task, exception in exceptions.items():
            with contextlib.suppress(UnreadableMemory):
                yield self._ended(task, exception, awaited)

    def _ended(self, task: int, exception: int, awaited: Collection[int]) -> TaskEnd:
        fields = self._memory.pointers(exception + EXCEPTION_FIELDS, EXCEPTION_WORDS) if exception else ()
        traceback = next((word for word in fields if self._objects.is_a(word, "traceback")), 0)
        arguments = next((word for word in fields if self._objects.is_a(word, "tuple")), 0)
        function = self._function(task)
        frames = _own(list(self._frames.of_traceback(traceback, MAX_FRAMES)), function)[::-1]
        return TaskEnd(
            address=task,
            name=self._name_of(task),
            function=function or (frames[-1].position.qualified if frames else ""),
            error=self._objects.type_name(exception).rpartition(".")[2] if exception else CANCELLED,
            message=self._message(arguments),
            is_cancelled=self._loops.is_cancelled(task),
            frames=frames,
            held=self._reached(frames, awaited),
        )

    def _function(self, task: int) -> str:
        """The qualified name of its coroutine, which outlives its frame; empty for a coroutine of Cython's."""
        coroutine = self._memory.pointer(task + self._layout.task_coroutine)
        if not self._objects.is_a(coroutine, *GENERATORS):
            return ""
        return self._objects.text(self._memory.pointer(coroutine + self._layout.generator_qualname))

    def _message(self, arguments: int) -> str:
        """The beginning of an exception's message; empty where it cannot be read."""
        with contextlib.suppress(UnreadableMemory):
            items = self._objects.items(arguments, MAX_MESSAGE) if arguments else ()
            if len(items) == 1 and self._objects.is_a(items[0], "str"):
                return self._objects.text(items[0], MAX_MESSAGE)
            return ", ".join(text_of(self._objects, item) for item in items[:3])[:MAX_MESSAGE]
        return ""

    def _reached(self, frames: Iterable[MemoryFrame], awaited: Collection[int]) -> set[int]:
        """Which of these objects the locals of the frames are, or lead to."""
        level, seen, found = variables_of(frames), set[int](), set[int]()
        for _ in range(MAX_DEPTH):
            found |= level.intersection(awaited)
            level = set(itertools.islice(level - seen, max(0, MAX_EXAMINED - self._examined)))
            seen |= level
            self._examined += len(level)
            references = self._references.of_all(level).values()
            level = {one for several in references for one in several[:MAX_FOLLOWED]}
        return found | level.intersection(awaited)


def _own(frames: Sequence[MemoryFrame], function: str) -> Sequence[MemoryFrame]:
    """The frames from the task's own function on; code that has fetched the exception comes before it."""
    name = function.rpartition(".")[2]
    return frames[next((at for at, frame in enumerate(frames) if frame.function == name), 0) :]
