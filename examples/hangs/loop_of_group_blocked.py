"""A concurrency group of an async actor whose event loop is blocked by a call that waits for the same group.

Each group has an event loop and a thread of its own. `handle` blocks the one of its group with `ray.get`, and `user`
would have to run there. The other group is idle, but cannot run it.

Expected: deadlock
Members: Server.handle, Server.user
Behind: driver loop_of_group_blocked.py
Points at: user: str = ray.get(server.user.remote())
Next step: Await the ObjectRef instead of ray.get in Server.handle, which blocks its event loop
"""

import os
from typing import Any

import ray


class Server:
    @ray.method(concurrency_group="requests")
    async def user(self) -> str:
        return "a guest"

    @ray.method(concurrency_group="requests")
    async def handle(self) -> str:
        server = ray.get_runtime_context().current_actor
        user: str = ray.get(server.user.remote())
        return f"hello {user}"

    @ray.method(concurrency_group="health")
    async def ping(self) -> str:
        return "well"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    groups = {"requests": 4, "health": 1}
    server: Any = ray.remote(concurrency_groups=groups)(Server).options(name="server").remote()
    ray.get([server.user.remote(), server.ping.remote()])
    greeting = server.handle.remote()
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
