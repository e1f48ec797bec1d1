"""A barrier for three ranks, the last of which is working.

Two ranks wait at the barrier. The third has more to do, and will join it.

Expected: running
Members: driver slow_last_rank.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time
from typing import Any

import ray


class Barrier:
    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)

    def arrive(self) -> None:
        self.barrier.wait()


class Rank:
    def train(self, barrier: Any, seconds: float) -> None:
        time.sleep(seconds)
        ray.get(barrier.arrive.remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    barrier: Any = ray.remote(Barrier).options(name="barrier", max_concurrency=3).remote(3)
    ranks: list[Any] = [ray.remote(Rank).options(name=f"rank {i}").remote() for i in range(3)]
    ray.get([one.__ray_ready__.remote() for one in (barrier, *ranks)])
    trained = [rank.train.remote(barrier, seconds) for rank, seconds in zip(ranks, (0.0, 0.0, 900.0), strict=True)]
    print("ready", flush=True)
    ray.get(trained)


if __name__ == "__main__":
    main()
