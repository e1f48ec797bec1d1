"""A task that waits for a future which a thread of its pool is still computing.

The stack of the task shows only the wait for the future; the work is on the stack of the other thread.

Expected: running
Members: driver future_still_computing.py, solve
Points at: time.sleep(seconds)
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import ray


def iterate(seconds: float) -> float:
    time.sleep(seconds)
    return 1.618


@ray.remote
def solve(seconds: float) -> float:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="solver") as pool:
        future = pool.submit(iterate, seconds)
        return future.result()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    solution = solve.remote(900.0)
    print("ready", flush=True)
    print(ray.get(solution))


if __name__ == "__main__":
    main()
