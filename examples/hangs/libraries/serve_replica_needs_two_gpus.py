"""A Serve deployment whose replica needs two GPUs, on a cluster that has one.

The driver polls Serve's controller in serve.run.

Expected: hang (finding: infeasible)
Members: start of Serve deployment Model of app default
Points at: handle = serve.run(model.bind(), route_prefix=None)
Needs: ray[serve]
Next step: Reduce what start of Serve deployment Model of app default asks for
"""

import os
from typing import Any

import ray
from ray import serve


class Model:
    def __call__(self, factor: float) -> float:
        return 2.0 * factor


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    print("ready", flush=True)
    model: Any = serve.deployment(ray_actor_options={"num_gpus": 2})(Model)
    handle = serve.run(model.bind(), route_prefix=None)
    print(handle.remote(2.0).result())


if __name__ == "__main__":
    main()
