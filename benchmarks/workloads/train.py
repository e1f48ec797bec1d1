"""Ray Train without a framework: two workers that report in step, again and again."""

import tempfile
import time
from typing import Any

import ray
from ray import train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from benchmarks.soak.rounds import play_for_ever


def learn(config: dict[str, Any]) -> None:
    for step in range(20):
        time.sleep(0.05 * (1 + train.get_context().get_world_rank()))
        train.report({"step": step})


def fit(_: None) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        trainer = DataParallelTrainer(
            learn,
            scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(storage_path=directory, failure_config=train.FailureConfig(max_failures=-1)),
        )
        assert trainer.fit().error is None


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(lambda: None, fit)


if __name__ == "__main__":
    main()
