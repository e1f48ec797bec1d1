"""Twelve actors are created, of which four run already: the constructors of the others still load weights.

The driver waits until each has answered once.

Expected: running
Members: driver actors_start.py
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray

ACTORS, LOADED = 12, 4


class Rollout:
    def __init__(self, number: int) -> None:
        self.load(0.0 if number < LOADED else 900.0)

    def load(self, seconds: float) -> None:
        time.sleep(seconds)

    def is_ready(self) -> bool:
        return True


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rollout: Any = ray.remote(num_cpus=0)(Rollout)
    actors = [rollout.remote(number) for number in range(ACTORS)]
    answers = [actor.is_ready.remote() for actor in actors]
    ray.get(answers[:LOADED])
    print("ready", flush=True)
    print(ray.get(answers))


if __name__ == "__main__":
    main()
