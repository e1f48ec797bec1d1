"""An async semaphore whose waiting acquires fill the actor's slots, while the releases are queued behind them.

The actor runs 20 calls at a time. Two clients hold the semaphore. 20 more calls wait for it in all slots, and the two
calls that would release it never start.

Expected: deadlock
Members: Semaphore.acquire, Semaphore.release
Points at: await self.semaphore.acquire()
Next step: Raise max_concurrency of Semaphore to 21 (now 20)
"""

import asyncio
import os
from typing import Any

import ray


class Semaphore:
    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(2)

    async def acquire(self) -> None:
        await self.semaphore.acquire()

    async def release(self) -> None:
        self.semaphore.release()


class Clients:
    async def use(self, semaphore: Any) -> None:
        await semaphore.acquire.remote()
        await asyncio.sleep(1.0)  # to work with it
        await semaphore.release.remote()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    semaphore: Any = ray.remote(Semaphore).options(name="semaphore", max_concurrency=20).remote()
    clients: Any = ray.remote(Clients).options(name="clients", max_concurrency=100).remote()
    used = [clients.use.remote(semaphore) for _ in range(22)]
    print("ready", flush=True)
    ray.get(used)


if __name__ == "__main__":
    main()
