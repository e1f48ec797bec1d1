"""A Train worker that waits for a slow task, while the worker's placement group leaves a CPU.

Train's controller polls its worker about once a second.

Expected: running
Members: driver train_awaits_slow_task.py
Points at: time.sleep(900.0)
Needs: ray[train]
"""

import os
import time

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


@ray.remote
def load() -> int:
    time.sleep(900.0)
    return 1000


def train() -> None:
    total: int = ray.get(load.remote())
    print(total)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit())


if __name__ == "__main__":
    main()
