"""As many tasks as CPUs, each in a `ray.wait` for a task that has no CPU (as in ray#2627 and ray#1273).

`ray.wait` releases the CPU, just as `ray.get` does.

Expected: running
Members: driver wait_inside_tasks.py, outer
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def inner(seconds: float) -> str:
    time.sleep(seconds)
    return "inner"


@ray.remote
def outer(seconds: float) -> int:
    done, _ = ray.wait([inner.remote(seconds)])
    return len(done)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    results = [outer.remote(900.0) for _ in range(int(ray.cluster_resources()["CPU"]))]
    print("ready", flush=True)
    print(ray.get(results))


if __name__ == "__main__":
    main()
