"""Two tasks in a placement group with room for one.

The second task waits for the first, which waits for nothing. (If it waited for the second, neither would end.)

Expected: running (finding: starved)
Members: driver tasks_in_one_bundle.py, work
Points at: time.sleep(seconds)
"""

import os
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def work(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}], name="narrow")
    ray.get(group.ready())
    in_group = work.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    done = [in_group.remote(900.0), in_group.remote(900.0)]
    print("ready", flush=True)
    print(ray.get(done))


if __name__ == "__main__":
    main()
