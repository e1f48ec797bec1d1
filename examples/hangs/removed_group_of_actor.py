"""An actor whose placement group is removed before the actor could be made.

Calls on an actor that died raise an error. This one has not died: it is pending creation, in a group that is gone.

Expected: hang (finding: orphaned)
Members: Singer.__init__
Points at: print(ray.get(singer.sing.remote()))
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
