"""A hundred tasks that flood one actor, so that one result seems never to arrive (as in ray#1149).

The actor adds them up one at a time, nine seconds each, and the driver's own call is the last one.

Expected: running
Members: driver flooded_actor.py, Counter.add
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, seconds: float) -> int:
        time.sleep(seconds)
        self.count += 1
        return self.count


@ray.remote
def flood(counter: Any, calls: int, seconds: float) -> None:
    for _ in range(calls):
        counter.add.remote(seconds)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    counter: Any = ray.remote(Counter).options(name="counter").remote()
    ray.get([flood.remote(counter, 25, 900.0 / 100) for _ in range(4)])
    mine = counter.add.remote(0.0)
    print("ready", flush=True)
    print(ray.get(mine))


if __name__ == "__main__":
    main()
