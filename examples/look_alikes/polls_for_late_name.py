"""A driver that looks up an actor by name, which another thread starts after a while, again and again.

In between no actor has the name, or only one that has died. Each lookup succeeds within two seconds.

Expected: running
"""

import os
import threading
import time
from typing import Any

import ray


class Registry:
    def members(self) -> list[str]:
        return []


def start_late(name: str) -> None:
    time.sleep(2.0)
    ray.remote(Registry).options(name=name, lifetime="detached", num_cpus=0).remote()


def wait_for(name: str) -> Any:
    while True:
        try:
            return ray.get_actor(name)
        except ValueError:
            time.sleep(0.25)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    for number in range(10_000):
        name = f"registry {number}"
        threading.Thread(target=start_late, args=(name,)).start()
        registry = wait_for(name)
        print(ray.get(registry.members.remote()))
        ray.kill(registry)


if __name__ == "__main__":
    main()
