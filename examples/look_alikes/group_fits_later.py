"""A placement group that will fit when a task ends.

The driver waits in `ray.get` for the group, the group for CPUs, and the CPUs are held by tasks that are working.

Expected: running (finding: starved)
Members: driver group_fits_later.py, placement group later
Points at: time.sleep(seconds)
"""

import os
import time

import ray
from ray.util.placement_group import placement_group


@ray.remote
def work(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cpus = int(ray.cluster_resources()["CPU"])
    at_work = [work.remote(900.0) for _ in range(cpus)]
    while ray.available_resources().get("CPU", 0.0) > 0:
        time.sleep(0.05)
    group = placement_group([{"CPU": 1}] * cpus, name="later")
    print("ready", flush=True)
    ray.get(group.ready())
    ray.get(at_work)


if __name__ == "__main__":
    main()
