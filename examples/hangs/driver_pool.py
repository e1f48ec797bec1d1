"""A driver that waits for the threads of a pool, which wait for actors in a deadlock.

The driver asks two neighbours at once, each from a thread of its own, so its own stack shows only a future. Both
neighbours ask each other first.

Expected: deadlock
Members: Neighbour.vote, Neighbour.opinion
Behind: driver driver_pool.py
Points at: votes = [future.result() for future in futures]
Next step: Raise max_concurrency of Neighbour to 2 (now 1)
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray


class Neighbour:
    def meet(self, other: Any) -> None:
        self.other = other

    def opinion(self) -> bool:
        return True

    def vote(self) -> bool:
        time.sleep(0.5)  # to think about it
        agrees: bool = ray.get(self.other.opinion.remote())
        return agrees


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    left: Any = ray.remote(Neighbour).options(name="left").remote()
    right: Any = ray.remote(Neighbour).options(name="right").remote()
    ray.get([left.meet.remote(right), right.meet.remote(left)])
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(ray.get, neighbour.vote.remote()) for neighbour in (left, right)]
        print("ready", flush=True)
        votes = [future.result() for future in futures]
    print(votes)


if __name__ == "__main__":
    main()
