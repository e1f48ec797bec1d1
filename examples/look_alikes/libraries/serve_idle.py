"""A Serve application without requests, and a driver that waits to be ended.

The controller checks the health of the replica periodically.

Expected: idle
Outside: driver in system call pause
Needs: ray[serve]
Next step: driver serve_idle.py waits for a signal
"""

import os
import signal
from typing import Any

import ray
from ray import serve


class Model:
    def __call__(self, factor: float) -> float:
        return 2 * factor


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    model: Any = serve.deployment(Model)
    handle = serve.run(model.bind(), route_prefix=None)
    print(handle.remote(2.0).result())
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
