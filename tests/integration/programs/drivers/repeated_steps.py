"""A driver that repeats one of several kinds of steps for ever; it prints ``ready`` after some.

``repeated_steps.py KIND [ACTORS]`` with the kinds of :data:`STEPS`. All calls sleep, so they need no CPU's time.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import ray

FIRST_STEPS = 5


@ray.remote(num_cpus=1)
def leaf(number: int) -> int:
    time.sleep(0.2 + 0.05 * (number % 7))
    return number


@ray.remote(num_cpus=1)
def reduce(*numbers: int) -> int:
    time.sleep(0.1)
    return sum(numbers)


@ray.remote(num_cpus=1)
def parent(count: int) -> int:
    time.sleep(0.1)
    found = ray.get([leaf.remote(number) for number in range(count)])
    time.sleep(0.1)
    return sum(found)


@ray.remote(num_cpus=0)
class Worker:
    def work(self, number: int) -> int:
        time.sleep(0.1 + 0.03 * (number % 5))
        return number


def arguments(step: int, actors: list[Any]) -> None:
    ray.get(reduce.remote(*[leaf.remote(step + number) for number in range(8)]))


def nested(step: int, actors: list[Any]) -> None:
    ray.get([parent.remote(3) for _ in range(3)])


def window(step: int, actors: list[Any]) -> None:
    pending: list[Any] = []
    for number in range(12):
        if len(pending) >= 4:
            _, pending = ray.wait(pending)
        pending.append(leaf.remote(number))
    ray.get(pending)


def pool(step: int, actors: list[Any]) -> None:
    ray.get([actors[number % len(actors)].work.remote(step + number) for number in range(8)])


STEPS = {"arguments": arguments, "nested": nested, "window": window, "pool": pool}


def main() -> None:
    ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
    worker: Any = Worker
    actors = [worker.remote() for _ in range(int(sys.argv[2]) if sys.argv[2:] else 0)]
    for step in range(1_000_000):
        STEPS[sys.argv[1]](step, actors)
        if step == FIRST_STEPS:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
