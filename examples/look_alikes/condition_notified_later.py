"""Coroutines that wait inside a condition, which releases its lock meanwhile.

Each of them is in an `async with` block of the condition. `restock` needs the condition too, and gets it after the
delivery.

Expected: running
Members: Store.buy, Store.restock
Points at: time.sleep(seconds)
"""

import asyncio
import os
import time
from typing import Any

import ray


class Store:
    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.stock = 0

    async def buy(self) -> str:
        async with self.changed:
            await self.changed.wait_for(lambda: self.stock > 0)
            self.stock -= 1
            return "bought"

    async def restock(self, truck: Any, seconds: float) -> None:
        amount = await truck.deliver.remote(seconds)
        async with self.changed:
            self.stock += amount
            self.changed.notify_all()


class Truck:
    def deliver(self, seconds: float) -> int:
        time.sleep(seconds)
        return 10


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(Store).options(name="store").remote()
    truck: Any = ray.remote(Truck).options(name="truck").remote()
    ray.get([store.__ray_ready__.remote(), truck.__ray_ready__.remote()])
    calls = [store.buy.remote(), store.buy.remote(), store.restock.remote(truck, 900.0)]
    print("ready", flush=True)
    print(ray.get(calls))


if __name__ == "__main__":
    main()
