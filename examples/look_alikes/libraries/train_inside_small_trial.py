"""A Tune trial that holds one CPU and waits for a slow Train run, whose worker holds the other.

The trial's function waits for Train's controller, an actor, which polls its worker about once a second. The driver
polls the trial.

Expected: running
Members: fit
Points at: DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()
Needs: ray[train,tune]
"""

import os
import time
from typing import Any

import ray
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train() -> None:
    time.sleep(900.0)


def fit(config: dict[str, Any]) -> None:
    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(tune.Tuner(tune.with_resources(fit, {"CPU": 1})).fit())


if __name__ == "__main__":
    main()
