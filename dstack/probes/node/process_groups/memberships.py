"""The process groups that a process is a member of, and its rank in a distributed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.process_groups.environment import number_of
from dstack.probes.node.process_groups.ray_groups import RayGroups
from dstack.probes.node.process_groups.torch_groups import TorchGroups
from dstack.probes.node.wire import GroupData


@dataclass(frozen=True)
class Memberships:
    """Groups and ranks, as :class:`dstack.model.Process` has them."""

    groups: Sequence[GroupData] = ()
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None


class ProcessGroups:
    """The groups of one process in one reading of its memory."""

    def __init__(self, process: PythonProcess) -> None:
        self.torch = TorchGroups(process)
        self.ray = RayGroups(process, self.torch)

    def memberships(self) -> Memberships:
        """All groups, and the rank by torch's default group or else by the launcher. Raises :class:`Unreadable`."""
        default, variables = self.torch.default, self.torch.variables
        return Memberships(
            groups=(*self.torch.by_address.values(), *self.ray.by_name.values()),
            rank=default["rank"] if default else number_of(variables, "RANK"),
            local_rank=number_of(variables, "LOCAL_RANK"),
            world_size=len(default["ranks"]) if default else number_of(variables, "WORLD_SIZE"),
        )
