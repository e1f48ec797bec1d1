"""A process pool inside a task of a process pool, whose workers need no CPU.

The inner pool starts next to the outer one and works slowly. A thread of each pool polls for results.

Expected: running
Members: batch of ray.util.multiprocessing.Pool
Points at: time.sleep(900.0)
"""

import os
import time

import ray
from ray.util.multiprocessing import Pool


def square(number: int) -> int:
    time.sleep(900.0)
    return number * number


def sum_of_squares(limit: int) -> int:
    with Pool(1, ray_remote_args={"num_cpus": 0}) as inner:
        return sum(inner.map(square, range(limit)))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    outer = Pool(2, ray_remote_args={"num_cpus": 1})
    print("ready", flush=True)
    print(outer.map(sum_of_squares, [10, 20]))


if __name__ == "__main__":
    main()
