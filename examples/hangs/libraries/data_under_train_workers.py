"""A Data pipeline in Train workers, whose placement group took every CPU.

Each of the two workers holds a CPU and waits for a pipeline, whose tasks find no CPU. Train's controller polls its
workers about once a second, and each pipeline's executor thread polls for its tasks.

Expected: deadlock
Members: ReadRange
Points at: rows = ray.data.range(10).materialize()
Needs: ray[data,train]
Next step: ask for less (ScalingConfig of the trainer)
"""

import os

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train() -> None:
    rows = ray.data.range(10).materialize()
    print(rows.count())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
