"""A Serve replica whose constructor waits for a task that needs the CPUs which the replica holds.

The replica took both CPUs and never becomes ready. The driver polls the Serve controller for the application's state,
and the controller polls the replica.

Expected: deadlock
Members: load
Points at: self.weights: list[float] = ray.get(load.remote())
Needs: ray[serve]
Next step: Let Serve deployment Model of app default ask for less
"""

import os
from typing import Any

import ray
from ray import serve


@ray.remote
def load() -> list[float]:
    return [0.5, 0.25]


class Model:
    def __init__(self) -> None:
        self.weights: list[float] = ray.get(load.remote())

    def __call__(self, factor: float) -> float:
        return factor * sum(self.weights)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    print("ready", flush=True)
    model: Any = serve.deployment(ray_actor_options={"num_cpus": 2})(Model)
    handle = serve.run(model.bind(), route_prefix=None)
    print(handle.remote(2.0).result())


if __name__ == "__main__":
    main()
