"""A compiled graph of three stages, of which one is slow now and then, with times in which it is idle."""

import random
import time

import ray
from ray.dag import InputNode, MultiOutputNode


@ray.remote(num_cpus=0)
class Stage:
    def run(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def main() -> None:
    ray.init(log_to_driver=False)
    first, left, right = (Stage.remote() for _ in range(3))
    with InputNode() as seconds:
        begun = first.run.bind(seconds)
        graph = MultiOutputNode([left.run.bind(begun), right.run.bind(begun)])
    compiled = graph.experimental_compile()
    print("ready", flush=True)
    while True:
        for _ in range(20):
            several = [compiled.execute(random.uniform(0, 0.1)) for _ in range(random.randrange(1, 4))]
            for refs in several:
                ray.get(refs, timeout=300)  # the first calls load what a channel needs
        time.sleep(random.uniform(0, 3))


if __name__ == "__main__":
    main()
