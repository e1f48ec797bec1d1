"""A tree of tasks, each waiting for its children, delayed by a single slow leaf.

The driver waits for the root, the root for its two branches, and each branch for its two leaves. Three leaves end at
once; the fourth takes a quarter of an hour. The stacks of four processes show where the time is spent.

Expected: running
Members: driver worker_tree.py, count
Points at: time.sleep(seconds)
Ends in: count, 1 directly, 3 in all
"""

import os
import time

import ray


@ray.remote
def count(level: int, seconds: float) -> int:
    if level == 0:
        return measure(seconds)
    children = [count.remote(level - 1, seconds), count.remote(level - 1, 0.0)]
    return sum(ray.get(children))


def measure(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=4 if address == "local" else None, include_dashboard=False)
    leaves = count.remote(2, 900.0)
    print("ready", flush=True)
    print(ray.get(leaves))


if __name__ == "__main__":
    main()
