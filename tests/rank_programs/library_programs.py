"""Rank programs of libraries that make the collectives themselves, in which one rank skips one step."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "  # here"


@dataclass(frozen=True)
class LibraryProgram:
    """A program of a library, whose rank ``mutant`` differs in the marked lines, with what it does.

    Groups that torch does not list, as those of ray.util.collective, have no ledgers: they are not ``counted``.
    """

    seed: str
    text: str
    mutation: str = "skips a step"
    ranks: int = 3
    mutant: int = 2
    needs: tuple[str, ...] = ()
    has_oracle: bool = True
    counted: bool = True

    def source(self) -> str:
        """The text of the program."""
        return self.text

    def changed_lines(self) -> set[int]:
        """The numbers of the marked lines."""
        return {number for number, line in enumerate(self.text.splitlines(), start=1) if line.endswith(MARK)}

    def calls(self, rank: int, group: str) -> list[int]:
        """The lines of the collectives of a group are not known, either."""
        return []

    def differences(self) -> dict[str, tuple[int, set[int]]]:
        """Which collective differs first is not known: the library makes them."""
        return {}


TRAINER = """\
import torch
from rank_actor import Rank, drive
{imports}

class Trainer(Rank):
    def train(self):
        self.join()
{model}
        for step in range(6):
            self.note(step=step)
{step}


if __name__ == "__main__":
    drive(Trainer, 3, "wait")
"""
BACKWARD = """\
            loss = model(torch.ones(2, 8)).sum()  # here
            if self.rank != 2 or step != 3:
                loss.backward()  # here"""

LIBRARIES = (
    LibraryProgram(
        "ddp",
        TRAINER.format(
            imports="from torch.nn.parallel import DistributedDataParallel",
            model="        model = DistributedDataParallel(torch.nn.Linear(8, 8))",
            step=BACKWARD,
        ),
    ),
    LibraryProgram(
        "fsdp",
        TRAINER.format(
            imports="from torch.distributed.device_mesh import init_device_mesh\n"
            "from torch.distributed.fsdp import fully_shard",
            model="        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))\n"
            '        mesh = init_device_mesh("cpu", (self.ranks,))\n'
            "        for one in (*model, model):\n"
            "            fully_shard(one, mesh=mesh)",
            step=BACKWARD,
        ),
    ),
    LibraryProgram(
        "collective",
        TRAINER.format(
            imports="from ray.util import collective",
            model='        collective.init_collective_group(3, self.rank, backend="gloo", group_name="gradients")',
            step="            if self.rank != 2 or step != 3:\n"
            '                collective.allreduce(torch.ones(4), group_name="gradients")  # here\n'
            '            collective.broadcast(torch.ones(4), src_rank=0, group_name="gradients")  # here',
        ).replace("        self.join()\n", ""),
        has_oracle=False,
        counted=False,
    ),
    LibraryProgram(
        "verl",
        """\
import threading

import ray
import torch
import torch.distributed as dist
from rank_actor import NAMESPACE, Rank
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Trainer(Worker):
    def __init__(self, folder):
        super().__init__()
        self.notes = Rank(self.rank, 3, 0, folder)
        dist.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self, step):
        self.notes.note(step=step)
        loss = torch.ones(4)
        if self.rank != 2 or step != 3:
            dist.all_reduce(loss)  # here
        dist.broadcast(loss, src=0)  # here
        return float(loss.sum())


def main():
    import sys
    from pathlib import Path

    ray.init(namespace=NAMESPACE)
    pool = RayResourcePool(process_on_nodes=[3], use_gpu=False, max_colocate_count=1)
    worker = RayClassWithInitArgs(ray.remote(num_cpus=0)(Trainer), str(Path(sys.argv[0]).parent))
    group = RayWorkerGroup(pool, worker)
    print("ready", flush=True)
    for step in range(6):
        group.update(step)
    threading.Event().wait()


if __name__ == "__main__":
    main()
""",
        needs=("verl",),
        has_oracle=False,
    ),
)
