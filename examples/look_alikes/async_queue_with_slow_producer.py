"""A coroutine that waits for a queue within its actor, which another coroutine fills slowly.

The producer is a call of the same actor and awaits a slow oven.

Expected: running
Members: driver async_queue_with_slow_producer.py
Points at: time.sleep(seconds)
"""

import asyncio
import os
import time
from typing import Any

import ray


class Kitchen:
    def __init__(self) -> None:
        self.dishes: asyncio.Queue[str] = asyncio.Queue()

    async def cook(self, oven: Any, seconds: float) -> None:
        await self.dishes.put(await oven.roast.remote(seconds))

    async def serve(self) -> str:
        return await self.dishes.get()


class Oven:
    def roast(self, seconds: float) -> str:
        time.sleep(seconds)
        return "roast"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    kitchen: Any = ray.remote(Kitchen).options(name="kitchen").remote()
    oven: Any = ray.remote(Oven).options(name="oven").remote()
    ray.get([kitchen.__ray_ready__.remote(), oven.__ray_ready__.remote()])
    calls = [kitchen.serve.remote(), kitchen.cook.remote(oven, 900.0)]
    print("ready", flush=True)
    print(ray.get(calls))


if __name__ == "__main__":
    main()
