"""An idle service: an actor without calls, and a driver that waits to be ended.

Expected: stalled
Outside: driver in threading.Event.wait
Next step: driver idle_service.py waits in threading.Event.wait (idle_service.py)
"""

import os
import threading
from typing import Any

import ray


class Greeter:
    def greet(self, name: str) -> str:
        return f"hello {name}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    greeter: Any = ray.remote(Greeter).options(name="greeter").remote()
    print(ray.get(greeter.greet.remote("world")))
    ended = threading.Event()
    print("ready", flush=True)
    ended.wait()


if __name__ == "__main__":
    main()
