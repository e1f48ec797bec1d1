"""A task that waits for the GPU of an actor whose owner will end it.

The trainer is idle and would live for ever. But its owner is working, and releases it when the work is done.

Expected: running (finding: starved)
Members: driver gpu_of_mortal_actor.py, render
Points at: print(ray.get(frame))
"""

import os
import time
from typing import Any

import ray


class Trainer:
    pass


class Owner:
    def hire(self) -> None:
        self.trainer: Any = ray.remote(Trainer).options(name="trainer", num_gpus=1).remote()
        ray.get(self.trainer.__ray_ready__.remote())

    def work(self, seconds: float) -> None:
        time.sleep(seconds)
        del self.trainer


@ray.remote(num_gpus=1)
def render() -> str:
    return "frame"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    owner: Any = ray.remote(Owner).options(name="owner").remote()
    ray.get(owner.hire.remote())
    owner.work.remote(900.0)
    frame = render.remote()
    print("ready", flush=True)
    print(ray.get(frame))


if __name__ == "__main__":
    main()
