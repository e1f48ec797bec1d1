"""A Train run whose first rank begins to read its shard of a dataset, while the second reports first.

Ray Data starts an epoch when all ranks read their shards, and a report ends when all ranks report. So the first rank
waits for the second one to read, and the second for the first one to report.

Expected: deadlock
Members: training function step
Points at: train.report({"loss": 0.5})
Needs: ray[data,train]
Next step: Make all ranks read their data and call collectives (such as ray.train.report) in the same order
"""

import os
from typing import Any

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def step() -> None:
    shard = train.get_dataset_shard("numbers")
    if train.get_context().get_world_rank() == 0:
        rows = sum(len(batch["id"]) for batch in shard.iter_batches())
        train.report({"rows": rows})
    else:
        train.report({"loss": 0.5})
        print(sum(len(batch["id"]) for batch in shard.iter_batches()))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    datasets: dict[str, Any] = {"numbers": ray.data.range(100)}
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})
    print("ready", flush=True)
    print(DataParallelTrainer(step, datasets=datasets, scaling_config=scaling).fit())


if __name__ == "__main__":
    main()
