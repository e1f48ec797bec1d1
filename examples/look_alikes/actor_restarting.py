"""A call on an actor that died and is being restarted, slowly.

The index dies during a call. Ray restarts it, and repeats the call after the new index has loaded its files.

Expected: running
Members: driver actor_restarting.py, Index.find
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Index:
    def __init__(self, seconds: float) -> None:
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self.load(seconds)

    def load(self, seconds: float) -> None:
        time.sleep(seconds)

    def find(self, word: str) -> str:
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            os._exit(1)  # a crash
        return f"page of {word}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    options = {"name": "index", "max_restarts": 1, "max_task_retries": 1}
    index: Any = ray.remote(Index).options(**options).remote(900.0)
    ray.get(index.__ray_ready__.remote())
    page = index.find.remote("hang")
    print("ready", flush=True)
    print(ray.get(page))


if __name__ == "__main__":
    main()
