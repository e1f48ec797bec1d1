"""ray.wait and ray.get in loops with timeouts, for slow tasks with arguments that are made by others."""

import contextlib
import time

import ray
from ray.exceptions import GetTimeoutError

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0)
def bake(seconds: float, *ingredients: float) -> float:
    time.sleep(seconds)
    return seconds + sum(ingredients)


def bake_all(_: None) -> None:
    dough = bake.remote(0.5)
    bread = [bake.remote(0.1, dough) for _ in range(3)]
    while bread:
        bread = ray.wait(bread, num_returns=len(bread), timeout=0.15)[1]
    cake = bake.remote(0.2, bake.remote(0.2), bake.remote(0.4))
    while not ray.wait([cake], timeout=0)[0]:
        with contextlib.suppress(GetTimeoutError):
            ray.get(cake, timeout=0.1)


def main() -> None:
    ray.init()
    play_for_ever(lambda: None, bake_all)


if __name__ == "__main__":
    main()
