"""A Train run whose first rank waits at a barrier, while the second reports (as in ray#56997).

Both are collective calls, and each rank would have to join the other's. Train's controller polls both workers about
once a second.

Expected: stalled
Members: driver train_ranks_apart.py
Points at: barrier()
Needs: ray[train]
"""

import os

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.collective import barrier
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def step() -> None:
    if train.get_context().get_world_rank() == 0:
        barrier()
    train.report({"loss": 0.5})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
