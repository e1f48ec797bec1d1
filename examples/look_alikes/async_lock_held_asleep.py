"""Many coroutines that wait for a lock, whose holder is sleeping.

The holder will wake up, and then they get the lock one after the other.

Expected: running
Members: driver async_lock_held_asleep.py, Ledger.read
Points at: async with self.lock:
"""

import asyncio
import os
from typing import Any

import ray


class Ledger:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def audit(self, seconds: float) -> str:
        async with self.lock:
            await asyncio.sleep(seconds)
            return "correct"

    async def begun(self) -> None:
        while not self.lock.locked():
            await asyncio.sleep(0.01)

    async def read(self) -> str:
        async with self.lock:
            return "balance"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    ledger: Any = ray.remote(Ledger).options(name="ledger").remote()
    ray.get(ledger.__ray_ready__.remote())
    audit = ledger.audit.remote(900.0)
    ray.get(ledger.begun.remote())
    reads = [ledger.read.remote() for _ in range(3)]
    print("ready", flush=True)
    print(ray.get([audit, *reads]))


if __name__ == "__main__":
    main()
