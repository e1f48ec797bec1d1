"""A rank that failed before the barrier, and a driver that fetches its error and calls it again.

Rank 0 waits for rank 1 at the barrier. The driver fetched the exception of the first call on rank 1 and called it again
with a batch that is not empty: rank 1 is working, and will arrive.

Expected: running
Members: driver failed_call_called_again.py, Rank.train
Points at: self.arrived.wait()
"""

import os
import threading
import time
from typing import Any

import ray


class Rank:
    def __init__(self) -> None:
        self.arrived = threading.Event()

    def train(self) -> str:
        self.arrived.wait()
        return "trained"

    def arrive(self) -> None:
        self.arrived.set()

    def step(self, first: Any, batch: list[float], seconds: float) -> float:
        mean = sum(batch) / len(batch)
        time.sleep(seconds)
        ray.get(first.arrive.remote())
        return mean


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first, second = (ray.remote(Rank).options(name=f"rank {i}", max_concurrency=2).remote() for i in range(2))
    ray.get([one.__ray_ready__.remote() for one in (first, second)])
    trained, mean = first.train.remote(), second.step.remote(first, [], 900.0)
    try:
        ray.get(mean)
    except ZeroDivisionError:
        mean = second.step.remote(first, [1.0], 900.0)
    print("ready", flush=True)
    print(ray.get(trained), ray.get(mean))


if __name__ == "__main__":
    main()
