"""The parts of one reading of one process: its stacks, its waits, its coroutines; and a whole sample.

Each part includes the previous ones, but a whole sample reads coroutines only of threads that may run an event loop.
The counts are the reads of its memory (system calls), their sizes, and the opened files and folders of ``/proc``.
Everything is warm: code objects and addresses of pages are cached by an earlier reading.

    python -m benchmarks.bench_reader [ROUNDS]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks import bench_coroutines, bench_process
from benchmarks.bench_process import Shape
from benchmarks.costs import Action, in_ms, in_turns, spread
from benchmarks.tables import Results
from dstack.probes.node.asyncio.suspended_coroutines import LoopState
from dstack.probes.node.cpython import memory
from dstack.probes.node.cpython.python_process import Interpreter, KnownPython, OwnPython, PythonProcess
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.stability import marks_of
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.thread_calls import BlockedCalls

SHAPES = (Shape(10, 20), Shape(200, 20), Shape(10, 300))
COROUTINES = 1000
Part = Callable[[PythonProcess], object]


@dataclass
class Counts:
    """The system calls of one action."""

    reads: int = 0
    bytes: int = 0
    files: int = 0


@contextmanager
def counted() -> Iterator[Counts]:
    """Count the reader's system call, its fallback, and the calls that open files of ``/proc``."""
    counts = Counts()

    def of_memory(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            given = call(*arguments)
            counts.reads += 1
            counts.bytes += max(0, given if isinstance(given, int) else len(given))
            return given

        return counting

    def of_files(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            counts.files += 1
            return call(*arguments, **options)

        return counting

    readv = of_memory(memory._process_vm_readv())
    with (
        patch.object(memory, "_process_vm_readv", lambda: readv),
        patch.object(os, "pread", of_memory(os.pread)),
        patch.object(os, "open", of_files(os.open)),
        patch.object(os, "listdir", of_files(os.listdir)),
        patch.object(os, "readlink", of_files(os.readlink)),
    ):
        yield counts


class Reader:
    """Readings of one process with the caches of earlier ones."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._interpreter = Interpreter(None, OwnPython(), proc.mapped_files(pid))
        self._known = KnownPython()

    def read(self, *parts: Part) -> None:
        with memory.open_memory(self._pid, keeps_pages=True) as opened:
            process = PythonProcess(opened, self._interpreter, self._known, marks_of(self._pid))
            for part in parts:
                part(process)
            self._known.pages = list(opened.pages)


def stacks(process: PythonProcess) -> None:
    assert all(process.steps(thread) for thread in process.threads)


def calls(process: PythonProcess) -> None:
    blocked = BlockedCalls(process, Origins().is_user)
    for thread in process.threads:  # a running loop has no call
        blocked.call_of(thread)


def coroutines(process: PythonProcess) -> None:
    state = LoopState.read(lambda: BlockedCalls(process, Origins().is_user).coroutines)
    assert state.unread is None


def parts_of(pid: int) -> dict[str, Action]:
    """Each part with its own warm reader, because the parts read different pages."""
    parts: tuple[tuple[str, tuple[Part, ...]], ...] = (
        ("stacks", (stacks,)),
        ("and calls", (stacks, calls)),
        ("and coroutines", (stacks, calls, coroutines)),
    )
    actions = {name: reading(Reader(pid), some) for name, some in parts}
    probe = NodeProbe()
    return {**actions, "a whole sample": lambda: bench_process.sample(probe, pid)}


def reading(reader: Reader, parts: tuple[Part, ...]) -> Action:
    return lambda: reader.read(*parts)


def measure(rounds: int) -> Results:
    columns = ("", "median ms", "min-max ms", "CPU ms", "reads of memory", "KiB", "files of /proc")
    results = Results(f"Parts of a reading, n = {rounds}", columns)
    for shape in SHAPES:
        with bench_process.process_of(shape) as process:
            add_parts(results, str(shape), process.pid, rounds)
    with bench_coroutines.running(COROUTINES) as loop:
        add_parts(results, f"{COROUTINES} coroutines", loop.pid, rounds)
    return results


def add_parts(results: Results, about: str, pid: int, rounds: int) -> None:
    parts = parts_of(pid)
    for action in parts.values():
        action()
    costs = in_turns(parts, rounds)
    for name, some in costs.items():
        with counted() as counts:
            parts[name]()
        walls_ms = spread([1000 * one.wall_s for one in some], 1)
        figures = in_ms(one.wall_s for one in some), walls_ms, in_ms(one.cpu_s for one in some)
        asked = str(counts.reads), f"{counts.bytes / 1024:.0f}", str(counts.files)
        results.add(f"{about}: {name}", *figures, *asked)


def main() -> None:
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5).show()


if __name__ == "__main__":
    main()
