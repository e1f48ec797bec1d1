"""Two actors that call each other, one of which is asynchronous.

While the host awaits the guest, its event loop is free and answers the guest's question; the answer is only slow.

Expected: running
Members: Host.invite, Guest.come
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Host:
    async def address(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "1 High Street"

    async def invite(self, guest: Any, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        return str(await guest.come.remote(me, seconds))


class Guest:
    def come(self, host: Any, seconds: float) -> str:
        address: str = ray.get(host.address.remote(seconds))
        return f"on the way to {address}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    host: Any = ray.remote(Host).options(name="host").remote()
    guest: Any = ray.remote(Guest).options(name="guest").remote()
    ray.get([host.__ray_ready__.remote(), guest.__ray_ready__.remote()])
    answer = host.invite.remote(guest, 900.0)
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
