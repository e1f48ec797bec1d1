"""Train workers that wait for the validation of their checkpoints, while their placement group took every CPU.

`get_all_reported_checkpoints` waits until the task has ended that Train's controller starts for a checkpoint. That task
needs one CPU of its own, beside those of the workers.

Expected: deadlock
Members: run_validation_fn
Points at: found = ray.train.get_all_reported_checkpoints()
Needs: ray[train]
Next step: ask for less (ScalingConfig of the trainer)
"""

import os
import tempfile

import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.validation_config import ValidationConfig

CPUS = 2


def validate(checkpoint: Checkpoint, **_: object) -> dict[str, float]:
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
            scaling_config=ScalingConfig(num_workers=CPUS),
            run_config=RunConfig(storage_path=storage),
            validation_config=ValidationConfig(fn=validate),
        )
        print(trainer.fit())


if __name__ == "__main__":
    main()
