"""The process groups that a process is a member of, and its rank in a distributed run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from dstack.libraries.collective.reading import RayGroups
from dstack.libraries.torch.groups import TorchGroups
from dstack.libraries.train.reading import TrainRank, rank_in_train
from dstack.observed.calls import ProcessGroup
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.process_groups.environment import number_of


@dataclass(frozen=True)
class Memberships:
    """Groups and ranks, as :class:`dstack.observed.processes.Process` has them."""

    groups: Sequence[ProcessGroup] = ()
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None


class ProcessGroups:
    """The groups of one process in one reading of its memory."""

    def __init__(self, process: PythonProcess) -> None:
        self._process = process
        self.torch = TorchGroups(process)
        self.ray = RayGroups(process, self.torch)

    def memberships(self) -> Memberships:
        """All groups, and the rank by torch's default group, Train or the launcher; nothing is raised."""
        train = self._train()
        default, variables = self.torch.default or (train.group if train else None), self.torch.variables
        own = [train.group] if train else []
        return Memberships(
            groups=(*self.torch.by_address.values(), *self.ray.by_name.values(), *own),
            rank=default.rank if default else number_of(variables, "RANK"),
            local_rank=train.local_rank if train else number_of(variables, "LOCAL_RANK"),
            world_size=len(default.ranks) if default else number_of(variables, "WORLD_SIZE"),
        )

    def _train(self) -> TrainRank | None:
        with contextlib.suppress(Unreadable):
            return rank_in_train(self._process)
        return None
