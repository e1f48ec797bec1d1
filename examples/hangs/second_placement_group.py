"""A job inside a placement group that asks for a second one (as in ray#24259 and ray#47439).

The driver reserves all CPUs for a search. The search starts training runs, each of which needs a placement group of its
own, for which no CPU is left. The driver removes the first group only after the search.

Expected: deadlock
Members: driver second_placement_group.py, search, placement group run
Points at: ray.get(own.ready())
Next step: Reserve less CPU in placement group search
"""

import os

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=0)
def search() -> str:
    own = placement_group([{"CPU": 1}], name="run")
    ray.get(own.ready())
    return "best run"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}] * int(ray.cluster_resources()["CPU"]), name="search")
    ray.get(group.ready())
    best = search.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    print("ready", flush=True)
    print(ray.get(best))
    remove_placement_group(group)


if __name__ == "__main__":
    main()
