"""A task whose pool of processes, made by fork, calls Ray in each of them.

Ray's connection does not survive a fork: the pool never gives a result.

Expected: hang (finding: orphaned)
Behind: driver pool_of_forks.py, squares
Points at: return ray.get(store.read.remote(index))
"""

import multiprocessing
import os
from functools import partial
from typing import Any

import ray


class Store:
    def read(self, index: int) -> int:
        return index * index


def read(store: Any, index: int) -> int:
    return ray.get(store.read.remote(index))


@ray.remote(num_cpus=0)
def squares(store: Any) -> list[int]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(partial(read, store), range(4), chunksize=1)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(num_cpus=0)(Store).remote()
    ray.get(store.read.remote(0))
    result = squares.remote(store)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
