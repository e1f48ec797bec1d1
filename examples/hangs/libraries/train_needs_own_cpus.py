"""Train workers that wait for tasks, while the workers' placement group took every CPU.

A worker runs its function in a thread of its own, where `ray.get` releases no CPU. Train's controller polls its workers
about once a second.

Expected: deadlock
Members: load
Points at: total: int = ray.get(load.remote())
Needs: ray[train]
Next step: ask for less (ScalingConfig of the trainer)
"""

import os

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


@ray.remote
def load() -> int:
    return 1000


def train() -> None:
    total: int = ray.get(load.remote())
    print(total)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
