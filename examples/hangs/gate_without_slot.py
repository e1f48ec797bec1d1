"""An async actor all of whose slots wait for an event that a call behind them would set.

Two visitors wait inside of the gate until it is opened; it takes two calls at a time, so `open` never begins. From
outside it shows that the actor holds the event, and that only the call behind them may still set it.

Expected: deadlock
Members: Gate.enter, Gate.open
Points at: await self.opened.wait()
"""

import asyncio
import os
from typing import Any

import ray


class Gate:
    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def enter(self) -> str:
        await self.opened.wait()
        return "inside"

    async def open(self) -> None:
        self.opened.set()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    gate: Any = ray.remote(Gate).options(name="gate", max_concurrency=2).remote()
    ray.get(gate.__ray_ready__.remote())
    calls = [gate.enter.remote(), gate.enter.remote(), gate.open.remote()]
    print("ready", flush=True)
    print(ray.get(calls))


if __name__ == "__main__":
    main()
