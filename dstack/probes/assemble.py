"""Joins what nodes sent back, as plain data, into one table of frames and stacks and typed processes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from dstack.model import Failure, Frame, Process

Plain = dict[str, Any]


class Assembly:
    """Everything seen in the processes of one snapshot, over all nodes and samples."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self.sources: dict[str, dict[int, str]] = {}
        self.hosts: dict[str, Plain] = {}

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Every distinct frame, in the order of their indices."""
        return tuple(self._frames)

    @property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """Every distinct stack as indices of frames, in the order of their indices."""
        return tuple(self._stacks)

    def add(self, node_ids: list[str], result: Plain, sample: int) -> tuple[dict[str, Process], list[Failure]]:
        """Takes in one probe's answer; returns its processes by worker id, and what failed.

        Of the frames, stacks and sources only what its processes show.
        """
        host: Plain = result["host"]
        self.hosts.update(dict.fromkeys(node_ids, host))
        frames = msgspec.convert(result["frames"], list[Frame])
        stacks: dict[int, int] = {}
        for index in sorted({one["stack"] for plain in result["processes"].values() for one in _executions(plain)}):
            stack = [frames[i] for i in result["stacks"][index]]
            stacks[index] = _index(self._stacks, tuple(_index(self._frames, frame) for frame in stack))
            for file in {frame.file for frame in stack} & result["sources"].keys():
                known = self.sources.setdefault(file, {})
                known.update({int(number): text for number, text in result["sources"][file].items()})
        processes = {}
        for worker_id, plain in result["processes"].items():
            placed = {
                kind: [{**one, "stack": stacks[one["stack"]]} for one in plain.get(kind, ())]
                for kind in ("threads", "coroutines")
            }
            children = [
                {**child, "threads": [{**one, "stack": stacks[one["stack"]]} for one in child["threads"]]}
                for child in plain.get("children", ())
            ]
            processes[worker_id] = msgspec.convert({**plain, **placed, "children": children}, Process)
        return processes, [msgspec.convert({**failure, "sample": sample}, Failure) for failure in result["failures"]]


def _executions(process: Plain) -> Iterator[Plain]:
    """The threads and coroutines of a process, and the threads of its children."""
    below = chain.from_iterable(child["threads"] for child in process.get("children", ()))
    return chain(process["threads"], process.get("coroutines", ()), below)


def _index(table: dict[Any, int], value: Any) -> int:
    return table.setdefault(value, len(table))
