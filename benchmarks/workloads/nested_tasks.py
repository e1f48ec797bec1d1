"""A tree of tasks that get each other's results inside: few CPUs do, as waiting tasks lend theirs back."""

import random
import time

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote
def count_leaves(depth: int) -> int:
    if depth == 0:
        time.sleep(random.uniform(0, 0.3))
        return 1
    children = [count_leaves.remote(depth - 1) for _ in range(2)]
    if depth % 2:
        return sum(ray.get(children))
    leaves = 0
    while children:
        done, children = ray.wait(children, timeout=0.1)
        leaves += sum(ray.get(done))
    return leaves


@ray.remote
def add(*numbers: int) -> int:
    return sum(numbers)


def count(_: None) -> None:
    total = add.remote(count_leaves.remote(3), count_leaves.remote(2), add.remote(count_leaves.remote(1), 1))
    assert ray.get(total) == 8 + 4 + 2 + 1


def main() -> None:
    ray.init()
    play_for_ever(lambda: None, count)


if __name__ == "__main__":
    main()
