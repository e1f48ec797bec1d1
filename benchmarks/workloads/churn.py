"""Twelve actors in three layers that call each other continuously, for a driver with six threads.

Each layer has actors of every kind: one call at a time, several threads, coroutines. Nothing sleeps, so every wait is
over within milliseconds, and no two readings of the cluster see the same waits. A round is a second of this.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever

THREADS = 6
ROUND_S = 1.0
PER_LAYER = 4
STEPS = 20_000
"""Additions at the end of each chain of calls: about a millisecond of CPU time."""


def count() -> int:
    return sum(range(STEPS)) // STEPS


class Back:
    def end(self, *_: Any) -> int:
        return count()


class Caller:
    """Calls the next layer: a call and its value, several at once, one that takes another's value, the first of two."""

    def __init__(self, below: list[Any]) -> None:
        self.below = below

    def pass_on(self, *_: Any) -> int:
        one, other = random.sample(self.below, 2)
        match random.randrange(4):
            case 0:
                return int(ray.get(one.end.remote()))
            case 1:
                return sum(ray.get([one.end.remote(), other.end.remote()]))
            case 2:
                return int(ray.get(other.end.remote(one.end.remote())))
            case _:
                calls = [one.end.remote(), other.end.remote()]
                (first,), _ = ray.wait(calls, num_returns=1)
                return int(ray.get(first))

    end = pass_on


class AsyncBack:
    async def end(self, *_: Any) -> int:
        return count()


class AsyncCaller:
    def __init__(self, below: list[Any]) -> None:
        self.below = below

    async def pass_on(self, *_: Any) -> int:
        one, other = random.sample(self.below, 2)
        return int(await other.end.remote(one.end.remote()) + await one.end.remote())

    end = pass_on


def layer(plain: type, asynchronous: type, *below: list[Any]) -> list[Any]:
    """Two actors that run one call at a time, one with four threads, one with an event loop."""
    sync: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(plain)
    loop: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(asynchronous)
    threaded = sync.options(max_concurrency=PER_LAYER).remote(*below)
    return [*(sync.remote(*below) for _ in range(PER_LAYER - 2)), threaded, loop.remote(*below)]


def call_for_a_while(front: list[Any], seed: float) -> None:
    order, end = random.Random(seed), time.monotonic() + ROUND_S
    while time.monotonic() < end:
        ray.get([actor.pass_on.remote() for actor in order.sample(front, 2)])


def layers() -> list[Any]:
    back = layer(Back, AsyncBack)
    middle = layer(Caller, AsyncCaller, back)
    front = layer(Caller, AsyncCaller, middle)
    ray.get([actor.pass_on.remote() for actor in front])
    return front


def main() -> None:
    ray.init()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="caller") as pool:
        play_for_ever(
            layers,
            lambda front: list(pool.map(lambda seed: call_for_a_while(front, seed), [random.random()] * THREADS)),
        )


if __name__ == "__main__":
    main()
