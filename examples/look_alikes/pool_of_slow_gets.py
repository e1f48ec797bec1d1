"""A driver that waits for the threads of a pool, each of which waits for a slow task.

There are more jobs than threads, so some have not started. All of them proceed, two at a time.

Expected: running
Members: driver pool_of_slow_gets.py
Points at: time.sleep(seconds)
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import ray


@ray.remote
def download(page: int, seconds: float) -> int:
    time.sleep(seconds)
    return page


def fetch(page: int) -> int:
    return ray.get(download.remote(page, 900.0))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(fetch, page) for page in range(5)]
        print("ready", flush=True)
        print([future.result() for future in futures])


if __name__ == "__main__":
    main()
