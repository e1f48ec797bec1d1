"""A Train run whose first rank makes one collective call more than the second.

The second rank's report is paired with the first rank's barrier, because both calls use the same actor. The second rank
then ends, and the first waits in its report. Train's controller polls both workers about once a second.

Expected: hang (finding: orphaned)
Members: rank 1 of the worker group
Behind: broadcast_from_rank_zero of Train's barrier, driver train_ranks_apart.py
Points at: train.report({"loss": 0.5})
Needs: ray[train]
Next step: Make the same calls on all ranks, the same number of times
"""

import os

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.collective import barrier
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def step() -> None:
    if train.get_context().get_world_rank() == 0:
        barrier()
    train.report({"loss": 0.5})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(DataParallelTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
