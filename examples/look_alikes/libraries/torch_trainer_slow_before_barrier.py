"""A TorchTrainer whose ranks call collectives in one order: rank 0 is in a barrier, and rank 1 still loads its data.

Rank 1 then joins the barrier, and both report.

Expected: running
Points at: time.sleep(3600)
Needs: ray[train], torch
"""

import os
import time

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def step() -> None:
    import torch.distributed as dist

    if train.get_context().get_world_rank() == 1:
        time.sleep(3600)
    dist.barrier()
    train.report({"loss": 0.5})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(TorchTrainer(step, scaling_config=ScalingConfig(num_workers=2)).fit())


if __name__ == "__main__":
    main()
