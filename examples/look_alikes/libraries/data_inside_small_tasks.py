"""Tasks that hold no CPU while each waits for a slow Data pipeline, whose tasks need a CPU.

Expected: running
Members: driver data_inside_small_tasks.py
Points at: time.sleep(900.0)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


def double(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(900.0)
    return {"id": row["id"] * 2}


@ray.remote(num_cpus=0)
def prepare() -> int:
    return ray.data.range(1).map(double).materialize().count()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    counts = [prepare.remote() for _ in range(2)]
    print("ready", flush=True)
    print(ray.get(counts))


if __name__ == "__main__":
    main()
