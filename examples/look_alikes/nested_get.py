"""Tasks that wait for tasks that wait for tasks, five deep, on two CPUs.

Each of the four waiting tasks seems to hold a CPU that the fifth needs. But a task that waits in `ray.get` releases its
CPU, so the innermost task is running.

Expected: running
Members: driver nested_get.py, descend
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def descend(levels: int, seconds: float) -> int:
    if levels == 0:
        time.sleep(seconds)
        return 0
    return 1 + ray.get(descend.remote(levels - 1, seconds))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    depth = descend.remote(4, 900.0)
    print("ready", flush=True)
    print(ray.get(depth))


if __name__ == "__main__":
    main()
