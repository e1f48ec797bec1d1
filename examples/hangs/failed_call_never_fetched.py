"""A rank that failed before the others' barrier, and a driver that never fetches its error.

Rank 0 waits for rank 1 at the barrier. The call on rank 1 raised an exception before the barrier. The driver holds the
ref with that exception, but first waits for the result of rank 0.

Expected: stalled
Members: driver failed_call_never_fetched.py, Rank.train
Points at: self.arrived.wait()
Failed before: Rank.step
Next step: Correct the error of Rank.step. Fetch its result together with those of the other calls
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
    print("ready", flush=True)
    print(ray.get(trained), ray.get(mean))


if __name__ == "__main__":
    main()
