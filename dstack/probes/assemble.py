"""Joins what nodes sent back, as plain data, into one table of frames and stacks and typed processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from dstack.model import Failure, Frame, Node, Process
from dstack.snapshot_file import MAX_FRAMES

Plain = dict[str, Any]


HOST_FIGURES = ("cpu_count", "load_1m", "memory_total_bytes", "memory_available_bytes")


class Senseless(Exception):
    """An answer that no probe of dstack's gives."""


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

    def add(
        self, node_ids: list[str], result: Plain, sample: int, among: Collection[str] | None = None
    ) -> tuple[dict[str, Process], list[Failure]]:
        """Takes in one probe's answer; returns its processes by worker id, and what failed.

        Of its processes only those ``among`` the known workers, and of the frames, stacks and sources only what these
        show. Raises :class:`Senseless`.
        """
        try:
            known = result["processes"].keys() if among is None else among
            shown = {worker_id: plain for worker_id, plain in result["processes"].items() if worker_id in known}
            return self._add(node_ids, {**result, "processes": shown}, sample)
        except (msgspec.MsgspecError, *(AttributeError, LookupError, OverflowError, TypeError, ValueError)) as error:
            raise Senseless from error

    def _add(self, node_ids: list[str], result: Plain, sample: int) -> tuple[dict[str, Process], list[Failure]]:
        figures = {name: result["host"][name] for name in HOST_FIGURES if name in result["host"]}
        msgspec.convert({"node_id": "", "ip": "", **figures}, Node)
        self.hosts.update(dict.fromkeys(node_ids, figures))
        sources = msgspec.convert(result["sources"], dict[str, dict[int, str]], strict=False)
        frames = msgspec.convert(result["frames"], list[Frame])
        stacks: dict[int, int] = {}
        for index in sorted({one["stack"] for plain in result["processes"].values() for one in _executions(plain)}):
            stack = [frames[i] for i in result["stacks"][index]]
            stacks[index] = _index(self._stacks, tuple(_index(self._frames, frame) for frame in stack))
            for file in {frame.file for frame in stack} & sources.keys():
                self.sources.setdefault(file, {}).update(sources[file])
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
        _require_bounded(processes.values(), self.stacks)
        return processes, [msgspec.convert({**failure, "sample": sample}, Failure) for failure in result["failures"]]


def _require_bounded(processes: Iterable[Process], stacks: Sequence[tuple[int, ...]]) -> None:
    """Every call is in a frame that its stack has, and all show no more frames than a snapshot file may."""
    executions = [one for process in processes for one in process.with_stacks()]
    if any(one.call and one.call.frame >= len(stacks[one.stack]) for one in executions):
        raise ValueError("a call in no frame")
    if sum(len(stacks[one.stack]) for one in executions) > MAX_FRAMES:
        raise ValueError("too many frames")


def _executions(process: Plain) -> Iterator[Plain]:
    """The threads and coroutines of a process, and the threads of its children."""
    below = chain.from_iterable(child["threads"] for child in process.get("children", ()))
    return chain(process["threads"], process.get("coroutines", ()), below)


def _index(table: dict[Any, int], value: Any) -> int:
    return table.setdefault(value, len(table))
