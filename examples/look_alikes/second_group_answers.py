"""An async actor that calls itself with `ray.get`, in a concurrency group that is free.

`ray.get` blocks the event loop of `handle`. But `user` runs in another group, on an event loop and thread of its own.

Expected: running
Members: driver second_group_answers.py
Points at: user: str = ray.get(server.user.remote(seconds))
"""

import asyncio
import os
from typing import Any

import ray


class Server:
    @ray.method(concurrency_group="lookups")
    async def user(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "a guest"

    @ray.method(concurrency_group="requests")
    async def handle(self, seconds: float) -> str:
        server = ray.get_runtime_context().current_actor
        user: str = ray.get(server.user.remote(seconds))
        return f"hello {user}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    groups = {"requests": 1, "lookups": 1}
    server: Any = ray.remote(concurrency_groups=groups)(Server).options(name="server").remote()
    ray.get(server.user.remote(0.0))
    greeting = server.handle.remote(900.0)
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
