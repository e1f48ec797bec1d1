"""A Tune trial that holds every CPU and waits for a Train run, whose worker needs a CPU.

The trial's function waits for Train's controller, which is an actor. The controller waits for a placement group, but
the trial's own group leaves no CPU for it. The driver polls the trial. The controller polls once a minute, without end.

Expected: deadlock
Members: run of Train's controller
Points at: DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()
Needs: ray[train,tune]
Next step: ask for less (ScalingConfig of the trainer and resources of a trial)
"""

import os
from typing import Any

import ray
from ray import tune
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train() -> None:
    print("trained")


def fit(config: dict[str, Any]) -> None:
    DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)).fit()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(tune.Tuner(tune.with_resources(fit, {"CPU": 2})).fit())


if __name__ == "__main__":
    main()
