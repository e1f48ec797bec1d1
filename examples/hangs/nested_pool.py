"""A process pool inside a task of a process pool (as in ray#21488).

Each worker of a `ray.util.multiprocessing.Pool` is an actor, which here holds a CPU for life. Two workers of the outer
pool hold both CPUs. Each opens a pool of its own, whose worker gets no CPU. A thread of the driver's pool polls for the
results.

Expected: deadlock
Members: batch of ray.util.multiprocessing.Pool
Points at: with Pool(1, ray_remote_args={"num_cpus": 1}) as inner:
Next step: Let ray.util.multiprocessing.Pool ask for less, or start fewer of them
"""

import os

import ray
from ray.util.multiprocessing import Pool


def square(number: int) -> int:
    return number * number


def sum_of_squares(limit: int) -> int:
    with Pool(1, ray_remote_args={"num_cpus": 1}) as inner:
        return sum(inner.map(square, range(limit)))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    outer = Pool(2, ray_remote_args={"num_cpus": 1})
    print("ready", flush=True)
    print(outer.map(sum_of_squares, [10, 20]))


if __name__ == "__main__":
    main()
