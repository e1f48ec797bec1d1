"""An async semaphore whose releases have a concurrency group of their own.

The actor runs 20 calls at a time, and 20 acquires wait in these slots. The releases have a slot of their own, and
arrive when the two clients that hold the semaphore have finished their slow work.

Expected: running
Members: Clients.use, Semaphore.acquire
Points at: await asyncio.sleep(900.0)
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

    @ray.method(concurrency_group="release")
    async def release(self) -> None:
        self.semaphore.release()


class Clients:
    async def use(self, semaphore: Any) -> None:
        await semaphore.acquire.remote()
        await asyncio.sleep(900.0)
        await semaphore.release.remote()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    semaphore: Any = (
        ray.remote(concurrency_groups={"release": 1})(Semaphore).options(name="semaphore", max_concurrency=20).remote()
    )
    clients: Any = ray.remote(Clients).options(name="clients", max_concurrency=100).remote()
    used = [clients.use.remote(semaphore) for _ in range(22)]
    print("ready", flush=True)
    ray.get(used)


if __name__ == "__main__":
    main()
