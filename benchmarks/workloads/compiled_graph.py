"""A compiled graph of three stages, of which one is slow now and then, with times in which it is idle."""

import random
import time
from typing import Any

import ray
from ray.dag import InputNode, MultiOutputNode

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0)
class Stage:
    def run(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def compiled() -> Any:
    first, left, right = (Stage.remote() for _ in range(3))
    with InputNode() as seconds:
        begun = first.run.bind(seconds)
        graph = MultiOutputNode([left.run.bind(begun), right.run.bind(begun)])
    return graph.experimental_compile()


def execute(graph: Any) -> None:
    for _ in range(20):
        several = [graph.execute(random.uniform(0, 0.1)) for _ in range(random.randrange(1, 4))]
        for refs in several:
            ray.get(refs, timeout=300)  # the first calls load what a channel needs
    time.sleep(random.uniform(0, 3))


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(compiled, execute)


if __name__ == "__main__":
    main()
