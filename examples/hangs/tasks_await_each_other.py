"""Two asyncio tasks of an async actor that await each other.

Each asks for the other side of the scale before it gives its own. No Ray call is part of the cycle, but the method
gathers the two tasks, and the driver waits for the method.

Expected: deadlock
Members: asyncio task Scale.side "left" of Scale.weigh, asyncio task Scale.side "right" of Scale.weigh
Behind: Scale.weigh, driver tasks_await_each_other.py
Points at: return 1 + await other
Next step: Do not wait for each other in asyncio task Scale.side "left" of Scale.weigh
"""

import asyncio
import os
from typing import Any

import ray


class Scale:
    async def side(self, other: "asyncio.Future[asyncio.Task[int]]") -> int:
        return await self.balance(await other)

    async def balance(self, other: "asyncio.Task[int]") -> int:
        return 1 + await other

    async def weigh(self) -> int:
        loop = asyncio.get_running_loop()
        about_left, about_right = loop.create_future(), loop.create_future()
        left = loop.create_task(self.side(about_right), name="left")
        right = loop.create_task(self.side(about_left), name="right")
        about_left.set_result(left)
        about_right.set_result(right)
        return sum(await asyncio.gather(left, right))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    scale: Any = ray.remote(Scale).options(name="scale").remote()
    ray.get(scale.__ray_ready__.remote())
    weight = scale.weigh.remote()
    print("ready", flush=True)
    print(ray.get(weight))


if __name__ == "__main__":
    main()
