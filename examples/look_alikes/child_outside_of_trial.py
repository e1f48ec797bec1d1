"""A trial in a full placement group that waits for a task of its own.

Without a special flag, tasks that are started inside a group run outside it, where there is a CPU.

Expected: running
Members: driver child_outside_of_trial.py, Trial.fit
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def load(seconds: float) -> int:
    time.sleep(seconds)
    return 1000


class Trial:
    def fit(self, seconds: float) -> int:
        rows: int = ray.get(load.remote(seconds))
        return rows


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}], name="trial 1")
    strategy = PlacementGroupSchedulingStrategy(group)
    trial: Any = ray.remote(Trial).options(num_cpus=1, name="trial", scheduling_strategy=strategy).remote()
    ray.get(trial.__ray_ready__.remote())
    rows = trial.fit.remote(900.0)
    print("ready", flush=True)
    print(ray.get(rows))


if __name__ == "__main__":
    main()
