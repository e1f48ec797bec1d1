"""A slow Data pipeline in a Train worker, whose placement group leaves a CPU.

Train's controller polls its worker about once a second, and the pipeline's executor thread polls for its tasks.

Expected: running
Members: driver data_beside_train_worker.py
Points at: time.sleep(900.0)
Needs: ray[data,train]
"""

import os
import time
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def double(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(900.0)
    return {"id": row["id"] * 2}


def train() -> None:
    rows = ray.data.range(10).map(double).materialize()
    print(rows.count())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit())


if __name__ == "__main__":
    main()
