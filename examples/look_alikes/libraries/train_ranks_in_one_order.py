"""A Train run whose ranks pass a barrier and then report, in the same order; one of them is slow.

Train's controller polls both workers about once a second.

Expected: running
Members: Barrier.arrive
Points at: ray.get(barrier.arrive.remote())
Needs: ray[train]
"""

import os
import threading
import time
from typing import Any

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


class Barrier:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def arrive(self) -> None:
        self.barrier.wait()


def step(config: dict[str, Any]) -> None:
    barrier = config["barrier"]
    if train.get_context().get_world_rank() == 0:
        ray.get(barrier.arrive.remote())
        train.report({"loss": 0.5})
    else:
        time.sleep(900.0)
        ray.get(barrier.arrive.remote())
        train.report({"loss": 0.5})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    barrier: Any = ray.remote(Barrier).options(name="barrier", max_concurrency=2).remote()
    config = {"barrier": barrier}
    print("ready", flush=True)
    print(DataParallelTrainer(step, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
