"""A coroutine that released a lock before it called an actor that needs the lock.

`open` of the vault seems to hold the lock while the guard calls the vault. But its `async with` block has ended; the
guard gets the picture of the door, which is only slow.

Expected: running
Members: Vault.open, Guard.inspect
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Vault:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.visits = 0

    async def door(self, seconds: float) -> str:
        async with self.lock:
            await asyncio.sleep(seconds)
            return "steel"

    async def open(self, guard: Any, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        async with self.lock:
            self.visits += 1
        return str(await guard.inspect.remote(me, seconds))


class Guard:
    def inspect(self, vault: Any, seconds: float) -> str:
        door: str = ray.get(vault.door.remote(seconds))
        return f"{door} is fine"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    vault: Any = ray.remote(Vault).options(name="vault").remote()
    guard: Any = ray.remote(Guard).options(name="guard").remote()
    ray.get([vault.__ray_ready__.remote(), guard.__ray_ready__.remote()])
    opened = vault.open.remote(guard, 900.0)
    print("ready", flush=True)
    print(ray.get(opened))


if __name__ == "__main__":
    main()
