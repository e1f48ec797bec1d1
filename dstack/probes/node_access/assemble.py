"""Joins the nodes' answers: their frames and stacks become those of one table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from dstack.files.snapshot_file import MAX_FRAMES
from dstack.model.snapshot import Node
from dstack.observed.node import Failure, HostFigures, NodeAnswer
from dstack.observed.processes import EndedTask, Frame, Process
from dstack.probes.node_access.answers import MalformedAnswer

_T = TypeVar("_T")


class Table(Generic[_T]):
    """Distinct ``items``, each with an index."""

    def __init__(self) -> None:
        self.items: list[_T] = []
        self._indices: dict[_T, int] = {}

    def enter(self, item: _T) -> int:
        """The index of an item, which is added if it is new."""
        index = self._indices.setdefault(item, len(self.items))
        if index == len(self.items):
            self.items.append(item)
        return index


class Assembly:
    """The tables of one snapshot, over all nodes and samples."""

    def __init__(self) -> None:
        self._frames: Table[Frame] = Table()
        self._stacks: Table[tuple[int, ...]] = Table()
        self.sources: dict[str, dict[int, str]] = {}
        self._hosts: dict[str, tuple[HostFigures, float | None]] = {}

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Every distinct frame, in the order of their indices."""
        return tuple(self._frames.items)

    @property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """Every distinct stack as indices of frames, in the order of their indices."""
        return tuple(self._stacks.items)

    def with_host(self, node: Node) -> Node:
        """The node with the figures of its host, if its probe has answered."""
        if node.node_id not in self._hosts:
            return node
        host, clock_ahead_s = self._hosts[node.node_id]
        return msgspec.structs.replace(node, host=host, clock_ahead_s=clock_ahead_s)

    def add(
        self,
        node_ids: Iterable[str],
        answer: NodeAnswer,
        sample: int,
        among: Collection[str] | None = None,
        clock_ahead_s: float | None = None,
    ) -> tuple[dict[str, Process], list[Failure]]:
        """Adds one probe's answer; returns its processes by worker id, and the failures.

        Adds only processes ``among`` the known workers, and all that are starting, with their frames, stacks and
        sources. The answer is used up: the stacks of its processes become indices of :attr:`stacks`. ``clock_ahead_s``
        is that of :class:`dstack.model.snapshot.Node`. Raises :class:`MalformedAnswer`.
        """
        processes = {id: process for id, process in answer.processes.items() if among is None or id in among}
        placing = _Placing(answer, self._frames, self._stacks, self.sources)
        try:
            placed = [*processes.values(), *(worker.process for worker in answer.starting)]
            for process in placed:
                placing.place(process)
            _require_bounded(placed, self._stacks.items)
        except (LookupError, ValueError) as error:
            raise MalformedAnswer from error
        if answer.host:
            self._hosts.update(dict.fromkeys(node_ids, (answer.host, clock_ahead_s)))
        return processes, [replace(failure, sample=sample) for failure in answer.failures]


class _Placing:
    """Enters the stacks of one answer into the snapshot's tables, each once."""

    def __init__(
        self,
        answer: NodeAnswer,
        frames: Table[Frame],
        stacks: Table[tuple[int, ...]],
        sources: dict[str, dict[int, str]],
    ) -> None:
        self._answer = answer
        self._answered_sources = dict(answer.sources)
        self._frames = frames
        self._stacks = stacks
        self._sources = sources
        self._placed: dict[int, int] = {}
        self._placed_frames: dict[int, int] = {}

    def place(self, process: Process) -> None:
        """Replaces the stacks of the process by those in the snapshot's table."""
        if any(child.children for child in process.children):
            raise ValueError("children of a child process")
        for execution in process.with_stacks():
            # In place: nothing else has these values yet, and copies of 100,000 threads would take 0.3 s.
            object.__setattr__(execution, "stack", self._stack(execution.stack))

    def _stack(self, index: int) -> int:
        if index not in self._placed:
            self._placed[index] = self._stacks.enter(tuple(map(self._frame, _item(self._answer.stacks, index))))
        return self._placed[index]

    def _frame(self, index: int) -> int:
        if index not in self._placed_frames:
            frame = _item(self._answer.frames, index)
            self._placed_frames[index] = self._frames.enter(frame)
            if lines := self._answered_sources.pop(frame.file, None):
                self._sources.setdefault(frame.file, {}).update(lines)
        return self._placed_frames[index]


def _item(items: Sequence[_T], index: int) -> _T:
    """The item; unlike in Python, a negative index raises :class:`IndexError`."""
    if index < 0:
        raise IndexError(index)
    return items[index]


def _require_bounded(processes: Iterable[Process], stacks: Sequence[tuple[int, ...]]) -> None:
    """Raises :class:`ValueError` unless every call has its frame, and a snapshot file may have as many frames."""
    executions = list(chain.from_iterable(process.with_stacks() for process in processes))
    calls = ((one.call, one.stack) for one in executions if not isinstance(one, EndedTask) and one.call)
    if any(call.frame >= max(1, len(stacks[stack])) for call, stack in calls):
        raise ValueError("a call without its frame")
    if sum(len(stacks[one.stack]) for one in executions) > MAX_FRAMES:
        raise ValueError("too many frames")
