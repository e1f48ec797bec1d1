"""A call on an actor that dies in each attempt (as in ray#11990).

Ray repeats the call up to its retry limit, and the caller waits. A snapshot cannot show whether the next attempt will
fail too; here one succeeds after a quarter of an hour.

Expected: running
Members: driver always_restarting.py, Engine.start
Points at: print(ray.get(engine.start.remote()))
Next step: prints the end of the log of actor Engine "engine", which dies again and again
"""

import os
import time
from typing import Any

import ray


class Engine:
    def __init__(self, warm_at: float) -> None:
        time.sleep(0.3)
        if time.time() < warm_at:
            os._exit(1)  # too cold

    def start(self) -> str:
        return "running"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    engine: Any = ray.remote(Engine).options(name="engine", max_restarts=-1).remote(time.time() + 900.0)
    print("ready", flush=True)
    print(ray.get(engine.start.remote()))


if __name__ == "__main__":
    main()
