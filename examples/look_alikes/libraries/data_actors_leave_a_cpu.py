"""A Data pipeline with slow actors, which leave one CPU to its read task.

The operator has one actor of one CPU, so the rows are read; doubling them takes long.

Expected: running (finding: polling)
Members: task of Data operator MapBatches(Double)
Points at: time.sleep(900.0)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


class Double:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(900.0)
        return {"id": batch["id"] * 2}


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rows = ray.data.range(1)
    print("ready", flush=True)
    dataset = rows.map_batches(Double, concurrency=1).materialize()
    print(dataset.count())


if __name__ == "__main__":
    main()
