"""A call to another concurrency group, which calls the first group again.

The server has one thread for `requests` and one for `logs`. A request waits for the log, and the log waits for a small
request of its own, for which the thread of `requests` is not free.

Expected: deadlock
Members: Server.handle, Server.write_log, Server.user
Points at: user: str = ray.get(server.user.remote())
Next step: Raise the threads of concurrency group requests of Server to 2 (now 1)
"""

import os
from typing import Any

import ray


class Server:
    @ray.method(concurrency_group="requests")
    def user(self) -> str:
        return "a guest"

    @ray.method(concurrency_group="requests")
    def handle(self) -> int:
        server = ray.get_runtime_context().current_actor
        length: int = ray.get(server.write_log.remote())
        return length

    @ray.method(concurrency_group="logs")
    def write_log(self) -> int:
        server = ray.get_runtime_context().current_actor
        user: str = ray.get(server.user.remote())
        return len(user)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    groups = {"requests": 1, "logs": 1}
    server: Any = ray.remote(concurrency_groups=groups)(Server).options(name="server").remote()
    ray.get(server.user.remote())
    length = server.handle.remote()
    print("ready", flush=True)
    print(ray.get(length))


if __name__ == "__main__":
    main()
