"""A task whose placement group is removed before the group was placed (as in ray#18572).

The group never fits and is removed. Ray keeps the task of the group pending, and raises no
error.

Expected: hang (finding: orphaned)
Members: late
Points at: print(ray.get(result))
Next step: Create another placement group and submit the task again with it
"""

import os

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def late() -> str:
    return "late"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1000}], name="too large")
    result = late.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    group.wait(1)
    remove_placement_group(group)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
