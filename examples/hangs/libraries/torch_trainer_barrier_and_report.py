"""A TorchTrainer whose ranks call two collectives in two orders: rank 0 a barrier of torch, rank 1 its report.

`train.report` of Ray Train ends when all ranks have reported, and `barrier` of torch.distributed when all have joined
it: each rank waits for the other one to make the same call (as in ray#56997).

Expected: deadlock
Points at: dist.barrier()
Members: training function step
Needs: ray[train], torch
Next step: Call ray.train.report of the worker group and barrier of group default_pg in the same order on all ranks
"""

import os

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def step() -> None:
    import torch.distributed as dist

    if train.get_context().get_world_rank() == 0:
        dist.barrier()
        train.report({"loss": 0.5})
    else:
        train.report({"loss": 0.5})
        dist.barrier()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(TorchTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
