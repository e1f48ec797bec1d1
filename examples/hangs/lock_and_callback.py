"""A thread that holds a Lock while it waits for a call that needs the lock.

A Lock does not store its holder; the `with` block on the stack of `restock` shows it. `restock` asks the warehouse,
which asks the shelf for its contents, on the other thread of the shelf.

Expected: deadlock
Members: Warehouse.pick
Points at: with self.lock:
Next step: Release the lock in Shelf.restock before it waits
"""

import os
import threading
from typing import Any

import ray


class Shelf:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.goods = ["tea"]

    def show(self) -> list[str]:
        with self.lock:
            return self.goods

    def restock(self, warehouse: Any) -> int:
        shelf = ray.get_runtime_context().current_actor
        with self.lock:
            self.goods += ray.get(warehouse.pick.remote(shelf))
            return len(self.goods)


class Warehouse:
    def pick(self, shelf: Any) -> list[str]:
        there: list[str] = ray.get(shelf.show.remote())
        return [one for one in ("tea", "rice") if one not in there]


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    shelf: Any = ray.remote(Shelf).options(name="shelf", max_concurrency=2).remote()
    warehouse: Any = ray.remote(Warehouse).options(name="warehouse").remote()
    ray.get([shelf.__ray_ready__.remote(), warehouse.__ray_ready__.remote()])
    count = shelf.restock.remote(warehouse)
    print("ready", flush=True)
    print(ray.get(count))


if __name__ == "__main__":
    main()
