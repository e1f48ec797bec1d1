"""Calls on an actor that is still starting.

Its `__init__` downloads for a quarter of an hour; the calls wait until it is done.

Expected: running
Members: driver slow_actor_start.py, Model.answer
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Model:
    def __init__(self, seconds: float) -> None:
        self.download(seconds)

    def download(self, seconds: float) -> None:
        time.sleep(seconds)

    def answer(self) -> str:
        return "42"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    model: Any = ray.remote(Model).options(name="model").remote(900.0)
    answer = model.answer.remote()
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
