"""An actor waits for a message from a child process that has died before it could send one.

Expected: stalled
Members: Environment.reset
Points at: return self.observations.get()
Next step: The output of its parent process shows why the child process
"""

import multiprocessing
import os
import sys
from typing import Any

import ray


def simulate(actions: Any, observations: Any) -> None:
    if not os.environ.get("RENDERER"):
        sys.exit(3)
    while True:
        observations.put(actions.get())


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
