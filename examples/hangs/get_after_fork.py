"""A loader whose forked worker processes read from an actor themselves.

Ray's connection does not survive a fork: the call is never sent, and its result never arrives.

Expected: hang (finding: orphaned)
Behind: driver get_after_fork.py, Loader.load
Points at: rows.put(ray.get(store.read.remote(index)))
Next step: Start child processes with the spawn method (multiprocessing.get_context('spawn')
"""

import multiprocessing
import os
from typing import Any

import ray


class Store:
    def read(self, index: int) -> int:
        return index * index


def read(store: Any, index: int, rows: Any) -> None:
    rows.put(ray.get(store.read.remote(index)))


class Loader:
    def load(self, store: Any) -> list[int]:
        context = multiprocessing.get_context("fork")
        rows = context.SimpleQueue()
        readers = [context.Process(target=read, args=(store, index, rows), daemon=True) for index in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return [rows.get() for _ in readers]


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(num_cpus=0)(Store).remote()
    loader: Any = ray.remote(num_cpus=0)(Loader).options(name="loader").remote()
    ray.get(store.read.remote(0))
    loaded = loader.load.remote(store)
    print("ready", flush=True)
    print(ray.get(loaded))


if __name__ == "__main__":
    main()
