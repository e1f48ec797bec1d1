"""Placement groups that come, hold tasks and actors, and go; more of them are asked for than there is room for."""

import random
import time
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0.5)
def step() -> int:
    time.sleep(random.uniform(0, 0.2))
    return 1


@ray.remote(num_cpus=0.5)
class Trainer:
    def train(self, *steps: int) -> int:
        return sum(steps)


def inside(group: PlacementGroup, bundle: int) -> Any:
    return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)


def train_in(group: PlacementGroup) -> None:
    ray.get(group.ready())
    trainer = Trainer.options(scheduling_strategy=inside(group, 0)).remote()
    steps = [step.options(scheduling_strategy=inside(group, 1)).remote() for _ in range(4)]
    assert ray.get(trainer.train.remote(*steps)) == 4
    ray.kill(trainer)


def train_in_groups(_: None) -> None:
    groups = [placement_group([{"CPU": 0.5}, {"CPU": 1}], strategy="PACK") for _ in range(4)]
    try:
        while groups:
            train_in(groups[-1])
            remove_placement_group(groups.pop())
    finally:
        for group in groups:
            remove_placement_group(group)


def main() -> None:
    ray.init()
    play_for_ever(lambda: None, train_in_groups)


if __name__ == "__main__":
    main()
