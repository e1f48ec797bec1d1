"""More tasks and actors than CPUs, which all end, so that all get their turn; and nested ones that lend theirs back."""

import random
import time
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=1)
def grind(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@ray.remote(num_cpus=1)
def order(count: int) -> int:
    return len(ray.get([grind.remote(random.uniform(0, 0.3)) for _ in range(count)]))


@ray.remote(num_cpus=1)
class Mill:
    def grind(self, count: int) -> int:
        time.sleep(0.05)
        return count


def run_mill() -> Any:
    mill = Mill.remote()
    return mill.grind.remote(1)  # the end of this call releases the mill


def grind_all(_: None) -> None:
    assert sum(ray.get([order.remote(3) for _ in range(4)])) == 12
    assert sum(ray.get([run_mill() for _ in range(4)])) == 4


def main() -> None:
    ray.init()
    play_for_ever(lambda: None, grind_all)


if __name__ == "__main__":
    main()
