"""A driver with a pool of forked processes, each of which calls Ray.

Ray's connection does not survive a fork: the pool never returns a result.

Expected: hang (finding: orphaned)
Behind: driver pool_of_forks.py
Points at: value: int = ray.get(stores[0].read.remote(index))
Next step: Start child processes with the spawn method (multiprocessing.get_context('spawn')
"""

import multiprocessing
import os
from typing import Any

import ray

stores: list[Any] = []


class Store:
    def read(self, index: int) -> int:
        return index * index


def read(index: int) -> int:
    value: int = ray.get(stores[0].read.remote(index))
    return value


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    stores.append(ray.remote(num_cpus=0)(Store).remote())
    ray.get(stores[0].read.remote(0))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map_async(read, range(4), chunksize=1)
        print("ready", flush=True)
        print(results.get())


if __name__ == "__main__":
    main()
