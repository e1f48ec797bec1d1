"""A Serve deployment whose replica needs a CPU, but an actor of the driver holds all CPUs.

The driver polls Serve's controller in serve.run, and would end the actor only afterwards.

Expected: deadlock
Members: start of Serve deployment Model of app default
Points at: handle = serve.run(model.bind(), route_prefix=None)
Needs: ray[serve]
Next step: Set num_cpus=0 for actor Trainer
"""

import os
from typing import Any

import ray
from ray import serve


class Trainer:
    def step(self) -> int:
        return 1


class Model:
    def __call__(self, factor: float) -> float:
        return 2.0 * factor


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    trainer = ray.remote(num_cpus=2)(Trainer).remote()
    ray.get(trainer.step.remote())
    print("ready", flush=True)
    model: Any = serve.deployment(Model)
    handle = serve.run(model.bind(), route_prefix=None)
    print(handle.remote(2.0).result())
    ray.kill(trainer)


if __name__ == "__main__":
    main()
