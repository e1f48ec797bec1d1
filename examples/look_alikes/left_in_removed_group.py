"""Tasks whose placement group was removed, and whose results the program has given up.

The group never fits. The program removes it, drops the refs, and continues without the tasks. Ray
keeps them pending until the driver ends, but nothing needs them.

Expected: running
Members: driver left_in_removed_group.py
Points at: time.sleep(900)
"""

import os
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def together() -> None:
    pass


@ray.remote
def alone() -> None:
    time.sleep(900)


def try_together() -> None:
    group = placement_group([{"CPU": 1000}], name="too large")
    strategy = PlacementGroupSchedulingStrategy(group)
    results = [together.options(scheduling_strategy=strategy).remote() for _ in range(3)]
    ray.wait(results, num_returns=3, timeout=1)
    remove_placement_group(group)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    try_together()
    print("ready", flush=True)
    ray.get(alone.remote())


if __name__ == "__main__":
    main()
