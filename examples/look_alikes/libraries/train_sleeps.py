"""A slow Train run; the controller polls its workers about once a second.

Expected: running
Members: driver train_sleeps.py
Points at: time.sleep(20.0)
Needs: ray[train]
"""

import os
import time

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def epochs() -> None:
    for step in range(45):
        time.sleep(20.0)
        train.report({"loss": 1.0 / (1 + step)})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(epochs, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
