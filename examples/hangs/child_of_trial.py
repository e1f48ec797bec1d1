"""A trial whose child task is confined to the trial's own placement group (as in ray#25239 and ray#24445).

The group has room for the trial only, and a flag places all tasks of the trial in the group too. So `load` finds no
room in it, although the cluster has enough CPUs.

Expected: deadlock
Members: Trial.fit, load
Points at: rows: int = ray.get(load.remote())
Next step: Set num_cpus=0 for actor Trial
"""

import os
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def load() -> int:
    return 1000


class Trial:
    def fit(self) -> int:
        rows: int = ray.get(load.remote())
        return rows


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}], name="trial 1")
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    trial: Any = ray.remote(Trial).options(num_cpus=1, name="trial", scheduling_strategy=strategy).remote()
    ray.get(trial.__ray_ready__.remote())
    rows = trial.fit.remote()
    print("ready", flush=True)
    print(ray.get(rows))


if __name__ == "__main__":
    main()
