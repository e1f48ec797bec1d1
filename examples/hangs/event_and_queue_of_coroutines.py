"""Two coroutines of an actor that wait for each other, through an event and a queue.

The delivery starts once the mill is open, and the mill opens with the first sack. Other code could set the event, so
this is no deadlock by the observations; but nothing that could do so is running.

Expected: stalled
Members: Mill.grind, driver event_and_queue_of_coroutines.py
Points at: first = await self.sacks.get()
Next step: Mill.grind at event_and_queue_of_coroutines.py waits for an item in the queue: search the code
"""

import asyncio
import os
from typing import Any

import ray


class Mill:
    def __init__(self) -> None:
        self.sacks: asyncio.Queue[int] = asyncio.Queue()
        self.is_open = asyncio.Event()

    async def deliver(self) -> None:
        await self.is_open.wait()
        await self.sacks.put(1)

    async def grind(self) -> int:
        self.delivery = asyncio.create_task(self.deliver())
        first = await self.sacks.get()
        self.is_open.set()
        return first


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    mill: Any = ray.remote(Mill).options(name="mill").remote()
    ray.get(mill.__ray_ready__.remote())
    flour = mill.grind.remote()
    print("ready", flush=True)
    print(ray.get(flour))


if __name__ == "__main__":
    main()
