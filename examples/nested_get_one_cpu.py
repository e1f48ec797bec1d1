"""A task that waits for another task on a cluster with a single CPU.

It looks as if `outer` held the only CPU while it waits for `inner`, which needs a CPU. But a task that is blocked in
`ray.get` releases its CPU, so `inner` runs. It is only slow.

Expected: running
Members: driver nested_get_one_cpu.py, outer
Points at: time.sleep(seconds)
Ends in: inner, 1 directly, 2 in all
"""

import os
import time

import ray


@ray.remote
def inner(seconds: float) -> str:
    time.sleep(seconds)
    return "inner"


@ray.remote
def outer(seconds: float) -> str:
    return "outer after " + ray.get(inner.remote(seconds))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=1 if address == "local" else None, include_dashboard=False)
    result = outer.remote(900.0)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
