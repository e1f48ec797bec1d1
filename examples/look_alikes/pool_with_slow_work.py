"""A process pool with slow work; a thread of the driver polls for the results.

Expected: running
Members: driver pool_with_slow_work.py
Points at: time.sleep(20.0)
"""

import os
import time

import ray
from ray.util.multiprocessing import Pool


def square(number: int) -> int:
    time.sleep(20.0)
    return number * number


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    pool = Pool(2, ray_remote_args={"num_cpus": 1})
    print("ready", flush=True)
    print(sum(pool.map(square, range(90), chunksize=1)))


if __name__ == "__main__":
    main()
