"""A task that holds the only GPU while it waits for a task on a CPU.

It keeps the GPU while it waits, and another task waits for the GPU. But the task that it waits for needs no GPU.

Expected: running (finding: starved)
Members: driver gpu_waits_for_cpu.py, train
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def clean(seconds: float) -> str:
    time.sleep(seconds)
    return "clean data"


@ray.remote(num_gpus=1)
def train(seconds: float) -> str:
    return "trained on " + ray.get(clean.remote(seconds))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    models = [train.remote(900.0), train.remote(0.0)]
    print("ready", flush=True)
    print(ray.get(models))


if __name__ == "__main__":
    main()
