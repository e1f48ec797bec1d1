"""The groups of ray.util.collective that a process is a member of, which Python keeps. Seen on Ray 2.46 and 2.60."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dstack.libraries.collective import FILE
from dstack.libraries.torch.groups import MAX_GROUPS, MAX_MEMBERS, MAX_NAME, TorchGroups
from dstack.observed.call_site import Site
from dstack.observed.calls import RAY, ProcessGroup
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import PythonProcess
from dstack.probes.node.named_values import frame_in, number_in, text_in

MODULE = "ray.util.collective.collective"
START = "init_collective_group"
ON_TORCH = "TorchGLOOGroup"
"""The class of groups that are made of torch's (Ray 2.60): their ranks are those of torch's world."""


class RayGroups:
    """The groups of one process, as far as they can be read; nothing is raised."""

    def __init__(self, process: PythonProcess, torch: TorchGroups) -> None:
        self._process = process
        self._objects = process.objects
        self._torch = torch

    @cached_property
    def by_name(self) -> dict[str, ProcessGroup]:
        """All groups by name."""
        found: dict[str, ProcessGroup] = {}
        for group in self._addresses():
            with contextlib.suppress(UnreadableMemory):
                data = self._group(group)
                found[data.name] = data
        return found

    def _addresses(self) -> list[int]:
        with contextlib.suppress(UnreadableMemory):
            manager = self._process.modules.lookup(MODULE, "_group_mgr")
            table = self._objects.attribute(manager, "_name_group_map") if manager else 0
            return [group for _, group in self._objects.entries(table)[:MAX_GROUPS]] if table else []
        return []

    def _group(self, address: int) -> ProcessGroup:
        attributes = self._objects.attributes(address)
        rank, size = (self._objects.number(attributes.get(name, 0)) for name in ("_rank", "_world_size"))
        name = self._objects.text(attributes.get("_group_name", 0), MAX_NAME)
        is_on_torch = self._objects.is_a(address, ON_TORCH)
        return group_of_ray(name, rank, size, self._world if is_on_torch else "")

    def on_torch(self) -> dict[str, int]:
        """The address of torch's group below each group that is made of it, by name."""
        found: dict[str, int] = {}
        for group in self._addresses():
            with contextlib.suppress(UnreadableMemory):
                if self._objects.is_a(group, ON_TORCH):
                    attributes = self._objects.attributes(group)
                    found[self._objects.text(attributes.get("_group_name", 0), MAX_NAME)] = attributes.get("_pg", 0)
        return found

    @property
    def _world(self) -> str:
        return self._torch.default.world if self._torch.default else ""


def group_of_ray(name: str, rank: float | None, size: float | None, world: str = "") -> ProcessGroup:
    """The membership of one of so many processes. Raises :class:`UnreadableMemory` where that cannot be."""
    if rank is None or size is None or not 0 <= rank < size <= MAX_MEMBERS:
        raise UnreadableMemory(f"rank {rank} of {size}")
    ranks = tuple(range(int(size)))
    return ProcessGroup(library=RAY, world=world, name=name, rank=int(rank), ranks=ranks, description=name)


class RayCalls:
    """The calls on the groups of one process."""

    def __init__(self, process: PythonProcess, groups: RayGroups) -> None:
        self._objects = process.objects
        self._groups = groups

    def operation_and_group(self, frames: Sequence[MemoryFrame], site: Site) -> tuple[str, ProcessGroup | None]:
        """The operation of a call, the outermost of these frames, and its group, None if that is not known.

        A group that was only declared is started by the first operation on it.
        """
        start = frame_in(frames, FILE, "create_collective_group")
        if start is not None and start.has("backend"):
            rank, size = (number_in(self._objects, start, name) for name in ("rank", "world_size"))
            return START, group_of_ray(text_in(self._objects, start, "group_name", MAX_NAME), rank, size)
        return site.operation, self._groups.by_name.get(text_in(self._objects, frames[-1], "group_name", MAX_NAME))
