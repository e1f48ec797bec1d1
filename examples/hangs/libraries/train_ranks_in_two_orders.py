"""A Train run whose first rank waits at a barrier, while the second waits in its report (as in ray#56997).

Both calls are collective, and the ranks make them in different orders: each waits for the other to make the same call.
Train's controller polls both workers about once a second.

Expected: deadlock
Members: broadcast_from_rank_zero of Train's barrier, Barrier.arrive
Points at: ray.get(barrier.arrive.remote())
Needs: ray[train]
Next step: Enter ray.train.report of the worker group and wait for Barrier.arrive in the same order on all ranks
"""

import os
import threading
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
        train.report({"loss": 0.5})
        ray.get(barrier.arrive.remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    barrier: Any = ray.remote(Barrier).options(name="barrier", max_concurrency=2).remote()
    config = {"barrier": barrier}
    print("ready", flush=True)
    print(DataParallelTrainer(step, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
