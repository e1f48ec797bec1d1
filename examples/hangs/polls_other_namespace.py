"""A driver that looks up by name, for ever, an actor that another namespace has.

Another service has started the registry, in namespace `prod`. This program names no such namespace in its lookup, so
Ray searches that of its job. It takes each `ValueError` for a registry that is late. An actor of this name may still
come, so nothing is proven: but Ray knows where the one is that the program means.

Expected: running
Outside: driver in sleep
Next step: Ray lists none of this name in namespace "serving"; actor Registry "registry" is in namespace "prod"
"""

import os
import time
from typing import Any

import ray


class Registry:
    def members(self) -> list[str]:
        return []


def wait_for(name: str) -> Any:
    while True:
        try:
            return ray.get_actor(name)
        except ValueError:
            print(f"{name} is not there yet")
            time.sleep(0.5)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False, namespace="serving")
    registry: Any = ray.remote(Registry).options(name="registry", namespace="prod").remote()
    print(ray.get(registry.members.remote()))
    print("ready", flush=True)
    print(ray.get(wait_for("registry").members.remote()))


if __name__ == "__main__":
    main()
