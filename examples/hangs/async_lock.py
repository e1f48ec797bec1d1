"""A coroutine that holds an asyncio lock while it awaits a call that needs the lock.

The vault runs many calls at a time, but its lock admits one. `open` holds it while the guard checks the door, and the
guard calls `door` of the vault, which needs the lock.

Expected: deadlock
Members: Vault.open, Guard.inspect, Vault.door
Behind: driver async_lock.py
Points at: async with self.lock:
Next step: Release the lock in Vault.open before it waits
"""

import asyncio
import os
from typing import Any

import ray


class Vault:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def door(self) -> str:
        async with self.lock:
            return "steel"

    async def open(self, guard: Any) -> str:
        me = ray.get_runtime_context().current_actor
        async with self.lock:
            return str(await guard.inspect.remote(me))


class Guard:
    def inspect(self, vault: Any) -> str:
        door: str = ray.get(vault.door.remote())
        return f"{door} is fine"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    vault: Any = ray.remote(Vault).options(name="vault").remote()
    guard: Any = ray.remote(Guard).options(name="guard").remote()
    ray.get([vault.__ray_ready__.remote(), guard.__ray_ready__.remote()])
    opened = vault.open.remote(guard)
    print("ready", flush=True)
    print(ray.get(opened))


if __name__ == "__main__":
    main()
