"""Two coroutines of an actor wait for each other through an event and a queue, and a third one opens at eight.

Expected: running
Members: driver event_set_by_sleeping_coroutine.py
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Mill:
    def __init__(self) -> None:
        self.sacks: asyncio.Queue[int] = asyncio.Queue()
        self.is_open = asyncio.Event()

    async def open_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.is_open.set()

    async def deliver(self) -> None:
        await self.is_open.wait()
        await self.sacks.put(1)

    async def grind(self, seconds: float) -> int:
        self.helpers = [asyncio.create_task(one) for one in (self.deliver(), self.open_later(seconds))]
        return await self.sacks.get()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    mill: Any = ray.remote(Mill).options(name="mill").remote()
    ray.get(mill.__ray_ready__.remote())
    flour = mill.grind.remote(900.0)
    print("ready", flush=True)
    print(ray.get(flour))


if __name__ == "__main__":
    main()
