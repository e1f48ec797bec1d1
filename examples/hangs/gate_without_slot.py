"""An async actor whose slots all wait for an event that a queued call would set.

Two visitors wait inside the gate until it is opened. The gate runs two calls at a time, so `open` never starts. The
snapshot shows that only the actor has the event, and that only the queued call can still set it.

Expected: deadlock
Members: Gate.enter, Gate.open
Points at: await self.opened.wait()
Next step: Raise max_concurrency of Gate to 3 (now 2)
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
