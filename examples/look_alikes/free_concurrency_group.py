"""An actor that waits for a call to itself, in a concurrency group that is free.

`handle` occupies the only thread of its group, and `user` runs in another group, on a thread of its own.

Expected: running
Members: driver free_concurrency_group.py
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Server:
    @ray.method(concurrency_group="lookups")
    def user(self, seconds: float) -> str:
        time.sleep(seconds)
        return "a guest"

    @ray.method(concurrency_group="requests")
    def handle(self, seconds: float) -> str:
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
