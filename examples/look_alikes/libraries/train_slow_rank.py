"""A Train run whose first rank waits at a barrier for the second, which is slow.

Train's controller polls both workers about once a second.

Expected: running
Members: driver train_slow_rank.py
Points at: print(DataParallelTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())
Needs: ray[train]
"""

import os
import time

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.collective import barrier
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def step() -> None:
    if train.get_context().get_world_rank() == 1:
        time.sleep(900.0)
    barrier()
    train.report({"loss": 0.5})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
