"""A Data pipeline whose actors hold every CPU that its read task needs (as in ray#44687).

The operator holds its two actors, of one CPU each, as long as the pipeline runs. The task that reads the rows needs a
CPU too, and the driver's executor thread polls for it without end.

Expected: deadlock
Members: driver data_actors_take_cpus.py
Points at: dataset = rows.map_batches(Double, concurrency=2).materialize()
Needs: ray[data]
Next step: Let Data operator MapBatches(Double) ask for less (concurrency of the Data operator)
"""

import os
from typing import Any

import ray


class Double:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"] * 2}


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rows = ray.data.range(1)
    print("ready", flush=True)
    dataset = rows.map_batches(Double, concurrency=2).materialize()
    print(dataset.count())


if __name__ == "__main__":
    main()
