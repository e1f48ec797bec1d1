"""What the controllers of Ray's libraries in a process have decided, read from the objects of their loops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dstack.libraries.data import reading as data
from dstack.libraries.serve import reading as serve
from dstack.libraries.train import reading as train
from dstack.observed.processes import LibraryState
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.stability import read_off_cpu
from dstack.probes.node.thread_stacks import is_in

Reader = Callable[[Objects, int], Iterator[LibraryState]]
READERS: Sequence[tuple[tuple[str, str], Reader]] = (
    (data.EXECUTOR, data.operators),
    (serve.CONTROLLER, serve.deployments),
    (train.CONTROLLER, train.run_state),
    (train.TUNE, train.trials),
)
"""The function of each loop, and what reads the states from its object; it raises ``UnreadableMemory``."""
MAX_STATES = 1_000


@dataclass(frozen=True)
class LibraryLoop:
    """The loop of a library's controller: its thread, the address of its object, and what reads that."""

    os_thread_id: int
    address: int
    reader: Reader

    def read(self, objects: Objects) -> tuple[LibraryState, ...] | None:
        """The states, none if they cannot be read; None if the thread ran meanwhile, so that they may not agree."""
        is_stable, found = read_off_cpu(
            objects.memory, self.os_thread_id, lambda: self._read(objects), lambda states: states is not None
        )
        return found if is_stable else None

    def _read(self, objects: Objects) -> tuple[LibraryState, ...]:
        with contextlib.suppress(UnreadableMemory, KeyError):
            return tuple(self.reader(objects, self.address))
        return ()


def library_loops(stacks: Iterable[tuple[int, Sequence[MemoryFrame]]]) -> list[LibraryLoop]:
    """The loops in these frames of threads and coroutines, each with the OS id of its thread."""
    return [
        LibraryLoop(thread, frame.local("self"), reader)
        for thread, frames in stacks
        for frame in frames
        for place, reader in READERS
        if frame.function == place[1] and is_in(frame, *place) and frame.has("self")
    ]
