"""ray.util.ActorPool with more work than actors, in order and as it comes."""

import random
import time

import ray
from ray.util import ActorPool


@ray.remote(num_cpus=0)
class Cutter:
    def cut(self, length: int) -> int:
        time.sleep(random.uniform(0, 0.15))
        return length


def main() -> None:
    ray.init()
    pool = ActorPool([Cutter.remote() for _ in range(3)])
    print("ready", flush=True)
    while True:
        assert sum(pool.map(lambda cutter, length: cutter.cut.remote(length), list(range(20)))) == 190
        assert sum(pool.map_unordered(lambda cutter, length: cutter.cut.remote(length), list(range(20)))) == 190


if __name__ == "__main__":
    main()
