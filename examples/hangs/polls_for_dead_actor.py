"""A driver that looks an actor up by its name until it is there, but the actor has died for good.

Another part of the program has ended the actor, and none starts it again. The driver takes each `ValueError` for an
actor that is late. So it polls for ever, and nothing waits in Ray. An actor of this name may still come, so nothing is
proven: but all else rests, and Ray knows what became of the actor.

Expected: running
Outside: driver in sleep
Next step: ray.get_actor("coordinator") finds no actor: actor Coordinator "coordinator" is DEAD
"""

import os
import time
from typing import Any

import ray


class Coordinator:
    def register(self, member: str) -> str:
        return f"{member} is registered"


def wait_for_coordinator() -> Any:
    while True:
        try:
            return ray.get_actor("coordinator")
        except ValueError:
            print("the coordinator is not there yet")
            time.sleep(0.5)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    coordinator: Any = ray.remote(Coordinator).options(name="coordinator").remote()
    print(ray.get(coordinator.register.remote("driver")))
    ray.kill(coordinator)
    time.sleep(1.0)  # until Ray has ended it
    print("ready", flush=True)
    print(ray.get(wait_for_coordinator().register.remote("driver again")))


if __name__ == "__main__":
    main()
