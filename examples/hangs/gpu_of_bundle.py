"""A task in a placement group that waits for a task which needs the group's only GPU (after ray#40925).

While `train` waits, it releases the CPU of its bundle, but not the GPU, neither inside a group nor outside.

Expected: deadlock
Members: train, evaluate
Points at: return ray.get(evaluate.options(scheduling_strategy=strategy).remote())
Next step: Reserve 1 GPU in placement group one of each
"""

import os
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_gpus=1)
def evaluate() -> float:
    return 0.9


@ray.remote(num_gpus=1)
def train(strategy: Any) -> float:
    return ray.get(evaluate.options(scheduling_strategy=strategy).remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    group = placement_group([{"CPU": 1, "GPU": 1}], name="one of each")
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group)
    score = train.options(scheduling_strategy=strategy).remote(strategy)
    print("ready", flush=True)
    print(ray.get(score))


if __name__ == "__main__":
    main()
