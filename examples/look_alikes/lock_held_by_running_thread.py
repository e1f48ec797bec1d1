"""A call that waits for a lock whose holder is working.

The store may run two calls at a time, and admits one at a time to the shelves.

Expected: running
Members: driver lock_held_by_running_thread.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time
from typing import Any

import ray


class Store:
    def __init__(self) -> None:
        self.shelves = threading.Lock()

    def find(self, thing: str) -> str:
        with self.shelves:
            return thing

    def take_stock(self, seconds: float) -> None:
        with self.shelves:
            time.sleep(seconds)

    def is_taking_stock(self) -> bool:
        return self.shelves.locked()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(Store).options(name="store", max_concurrency=2).remote()
    store.take_stock.remote(900.0)
    while not ray.get(store.is_taking_stock.remote()):
        pass
    found = store.find.remote("lamp")
    print("ready", flush=True)
    print(ray.get(found))


if __name__ == "__main__":
    main()
