"""All slots of an async actor wait for an event that another coroutine will set.

It looks as if a queued call had to set the event. But `__init__` has ended and left a task in the event loop, which
opens the gate later.

Expected: running
Members: Gate.enter
Points at: await self.opened.wait()
"""

import asyncio
import os
from typing import Any

import ray


class Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def open_after(self, seconds: float) -> None:
        self.opening = asyncio.get_running_loop().create_task(self.open(seconds))

    async def open(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.opened.set()

    async def enter(self) -> str:
        await self.opened.wait()
        return "inside"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    gate: Any = ray.remote(Gate).options(name="gate", max_concurrency=2).remote()
    ray.get(gate.open_after.remote(900.0))
    visits = [gate.enter.remote() for _ in range(3)]
    print("ready", flush=True)
    print(ray.get(visits))


if __name__ == "__main__":
    main()
