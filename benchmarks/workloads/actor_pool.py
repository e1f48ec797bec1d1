"""ray.util.ActorPool with more work than actors, in order and as it comes."""

import random
import time

import ray
from ray.util import ActorPool

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Cutter:
    def cut(self, length: int) -> int:
        time.sleep(random.uniform(0, 0.15))
        return length


def cut_twice(pool: ActorPool) -> None:
    assert sum(pool.map(lambda cutter, length: cutter.cut.remote(length), list(range(20)))) == 190
    assert sum(pool.map_unordered(lambda cutter, length: cutter.cut.remote(length), list(range(20)))) == 190


def main() -> None:
    ray.init()
    play_for_ever(lambda: ActorPool([Cutter.remote() for _ in range(3)]), cut_twice)


if __name__ == "__main__":
    main()
