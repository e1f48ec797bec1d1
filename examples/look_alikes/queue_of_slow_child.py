"""The same with a child process that works for long before it sends its first message.

Expected: running
Members: Environment.reset
"""

import multiprocessing
import os
import time
from typing import Any

import ray


def simulate(actions: Any, observations: Any) -> None:
    while True:
        action = actions.get()
        time.sleep(900)
        observations.put(action)


class Environment:
    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.actions, self.observations = context.Queue(), context.Queue()
        self.child = context.Process(target=simulate, args=(self.actions, self.observations))
        self.child.start()

    def reset(self) -> Any:
        self.actions.put("reset")
        return self.observations.get()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    environment: Any = ray.remote(Environment).options(num_cpus=0).remote()
    first = environment.reset.remote()
    print("ready", flush=True)
    print(ray.get(first))


if __name__ == "__main__":
    main()
