"""A Data pipeline that makes slow progress: one task ends every 20 seconds.

Expected: running
Members: driver data_slow_pipeline.py
Points at: time.sleep(20.0)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


def double(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(20.0)
    return {"id": row["id"] * 2}


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rows = ray.data.range(90, override_num_blocks=90).map(double, concurrency=1)
    print("ready", flush=True)
    print(rows.materialize().count())


if __name__ == "__main__":
    main()
