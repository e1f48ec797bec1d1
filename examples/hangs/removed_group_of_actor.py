"""An actor whose placement group is removed before the actor has started.

Calls on a dead actor raise an error. This actor is not dead: it stays pending in a group that was removed.

Expected: hang (finding: orphaned)
Members: Singer.__init__
Points at: print(ray.get(singer.sing.remote()))
Next step: Create another placement group and create a new actor in it
"""

import os
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class Singer:
    def sing(self) -> str:
        return "la"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1000}], name="stage")
    strategy = PlacementGroupSchedulingStrategy(group)
    singer: Any = ray.remote(Singer).options(num_cpus=1, scheduling_strategy=strategy).remote()
    group.wait(1)
    remove_placement_group(group)
    print("ready", flush=True)
    print(ray.get(singer.sing.remote()))


if __name__ == "__main__":
    main()
