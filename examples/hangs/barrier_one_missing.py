"""A barrier for three ranks, which the third never reaches.

Two ranks are at the barrier. The third waits for the weights of the first, which sends them after the barrier.

Expected: deadlock
Members: Barrier.arrive, Rank.train_from
Points at: weights: list[float] = ray.get(first.weights.remote())
Next step: Raise max_concurrency of Rank to 2 (now 1)
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
    def weights(self) -> list[float]:
        return [0.5, 0.25]

    def train(self, barrier: Any) -> None:
        ray.get(barrier.arrive.remote())

    def train_from(self, first: Any, barrier: Any) -> None:
        time.sleep(0.5)  # to load the data
        weights: list[float] = ray.get(first.weights.remote())
        ray.get(barrier.arrive.remote())
        print(weights)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    barrier: Any = ray.remote(Barrier).options(name="barrier", max_concurrency=3).remote(3)
    ranks: list[Any] = [ray.remote(Rank).options(name=f"rank {i}").remote() for i in range(3)]
    ray.get([one.__ray_ready__.remote() for one in (barrier, *ranks)])
    trained = [rank.train.remote(barrier) for rank in ranks[:2]]
    trained.append(ranks[2].train_from.remote(ranks[0], barrier))
    print("ready", flush=True)
    ray.get(trained)


if __name__ == "__main__":
    main()
