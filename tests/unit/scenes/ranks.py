"""Scenes of a distributed run: eight trainers, two in each of the dimensions tp, dp and pp."""

from __future__ import annotations

from collections.abc import Callable

from dstack.observed.calls import ProcessGroup
from tests.unit.scenes import Scene, SceneProcess

WORLD = "tcp://10.0.0.1:29500"
SIZE = 8
STRIDES = {"tp": 1, "dp": 2, "pp": 4}
"""The distance in the world of consecutive ranks of a dimension."""


def group(rank: int, ranks: tuple[int, ...], description: str, world: str = WORLD, name: str = "7") -> ProcessGroup:
    return ProcessGroup(
        library="torch.distributed", world=world, name=name, rank=rank, ranks=ranks, description=description
    )


def groups_of(rank: int, world: str = WORLD) -> tuple[ProcessGroup, ...]:
    """The memberships of one rank: the world, one group in each dimension, and one without a name."""
    all_ranks = tuple(range(SIZE))
    found = [group(rank, all_ranks, "default_pg", world), group(rank, all_ranks, "undefined", world)]
    for name, stride in STRIDES.items():
        first = rank - rank // stride % 2 * stride
        found.append(group(rank, (first, first + stride), f"mesh_{name}", world))
    return tuple(found)


def ranked(proc: SceneProcess, rank: int, **known: object) -> SceneProcess:
    """Makes a process a rank of the run, and returns it."""
    proc.known |= {"process_groups": groups_of(rank), "rank": rank, "local_rank": rank, "world_size": SIZE, **known}
    return proc


def training(is_elsewhere: Callable[[int], bool] = lambda rank: rank == 3) -> tuple[Scene, list[SceneProcess]]:
    """A driver that waits for eight trainers; all of them are in one collective, except those that load data."""
    scene = Scene()
    driver = scene.driver()
    trainers = [ranked(scene.actor("Trainer", name=f"t{rank}"), rank) for rank in range(SIZE)]
    for rank, trainer in enumerate(trainers):
        trainer.runs(scene.call(trainer, "step", by=driver))
        trainer.threads[0].line = 20 if is_elsewhere(rank) else 10
        if not is_elsewhere(rank):
            trainer.is_in("torch.distributed.all_reduce")
    driver.gets(*driver.submitted)
    return scene, trainers
