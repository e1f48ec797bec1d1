"""A task in a placement group that waits for another task of the same group (as in ray#40925).

The group has one bundle with one CPU. A waiting task releases its CPU inside a group too, so the other task runs.

Expected: running
Members: driver get_inside_bundle.py, outer
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def inner(seconds: float) -> str:
    time.sleep(seconds)
    return "inner"


@ray.remote
def outer(strategy: Any, seconds: float) -> str:
    return ray.get(inner.options(scheduling_strategy=strategy).remote(seconds))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}], name="narrow")
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    result = outer.options(scheduling_strategy=strategy).remote(strategy, 900.0)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
