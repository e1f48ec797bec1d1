"""A Data job that is starting: the constructors of its actors load a model for a quarter of an hour.

Expected: running (finding: polling)
Members: driver data_actors_start.py
Points at: time.sleep(seconds)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


class Model:
    def __init__(self) -> None:
        self.load(900.0)

    def load(self, seconds: float) -> None:
        time.sleep(seconds)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"] * 2}


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rows = ray.data.range(90, override_num_blocks=9).map_batches(Model, concurrency=2, num_cpus=0.5)
    print("ready", flush=True)
    print(rows.materialize().count())


if __name__ == "__main__":
    main()
