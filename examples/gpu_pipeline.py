"""A pipeline of four steps that needs the only GPU, which another team's training run holds.

Each step takes the result of the step before it, so only the first step asks for the GPU. The others wait for their
argument. The training run will end and release the GPU: the pipeline is starved, not deadlocked, and the report names
the holder of the GPU. (Ray counts GPUs as slots; no real GPU is needed.)

Expected: running (finding: starved)
Members: driver gpu_pipeline.py, step
Points at: time.sleep(seconds)
Ends in: end of actor Trainer "training of another team", which holds 1 CPU and 1 GPU, 1 directly, 5 in all
"""

import os
import time
from typing import Any

import ray


class Trainer:
    def fit(self, seconds: float) -> None:
        time.sleep(seconds)


@ray.remote(num_gpus=1)
def step(name: str, before: str) -> str:
    return f"{before} > {name}"


def start_training() -> None:
    """Starts a run and keeps no handle, so the trainer ends, and frees its slot, when `fit` returns."""
    trainer: Any = ray.remote(Trainer).options(name="training of another team", num_gpus=1).remote()
    ray.get(trainer.__ray_ready__.remote())
    trainer.fit.remote(900.0)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    start_training()
    result = step.remote("load", "start")
    for name in ("embed", "rank", "store"):
        result = step.remote(name, result)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
