"""A loader with forked worker processes, which are slow with the data that it has read for them.

It calls Ray before the fork and passes plain data, so each process ends by itself.

Expected: running
Members: driver get_before_fork.py, Loader.load
Points at: reader.join()
"""

import multiprocessing
import os
import time
from typing import Any

import ray


class Store:
    def read(self, index: int) -> int:
        return index * index


def parse(value: int, rows: Any) -> None:
    time.sleep(900.0)
    rows.put(value)


class Loader:
    def load(self, store: Any) -> list[int]:
        context = multiprocessing.get_context("fork")
        rows = context.SimpleQueue()
        values = ray.get([store.read.remote(index) for index in range(2)])
        readers = [context.Process(target=parse, args=(value, rows), daemon=True) for value in values]
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
