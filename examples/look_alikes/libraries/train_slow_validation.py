"""A Train worker that waits for the validation of its checkpoint, which takes long.

The worker leaves a CPU for the task that Train's controller has started for the checkpoint.

Expected: running
Members: driver train_slow_validation.py
Points at: time.sleep(100_000)
Needs: ray[train]
"""

import os
import tempfile
import time

import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.validation_config import ValidationConfig

CPUS = 2


def validate(checkpoint: Checkpoint, **_: object) -> dict[str, float]:
    time.sleep(100_000)
    return {"score": float(len(os.listdir(checkpoint.path)))}


def train() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/weights", "w") as file:
            file.write("1.0")
        ray.train.report({"loss": 1.0}, checkpoint=Checkpoint.from_directory(folder), validation=True)
    found = ray.train.get_all_reported_checkpoints()
    print(found)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=CPUS if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    with tempfile.TemporaryDirectory() as storage:
        trainer = DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=CPUS - 1),
            run_config=RunConfig(storage_path=storage),
            validation_config=ValidationConfig(fn=validate),
        )
        print(trainer.fit())


if __name__ == "__main__":
    main()
