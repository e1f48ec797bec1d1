"""A driver that keeps failed results for a summary at the end, and continues with the other batches.

One batch of four is empty, so its call raises an exception. The driver fetches each result as soon as it is there,
keeps the failed ones, and waits for the next result.

Expected: running
Members: driver failed_results_kept.py
"""

import os
import time
from typing import Any

import ray


class Loader:
    def load(self, batch: list[float], seconds: float) -> float:
        mean = sum(batch) / len(batch)
        time.sleep(seconds)
        return mean


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    loader = ray.remote(Loader).options(name="loader").remote()
    batches: list[list[float]] = [[], [1.0], [2.0, 4.0], [3.0]]
    failed: list[Any] = []
    pending = [loader.load.remote(batch, 20.0) for batch in batches]
    print("ready", flush=True)
    for number in range(10_000):
        (ready,), pending = ray.wait(pending)
        pending.append(loader.load.remote(batches[number % 4], 20.0))
        try:
            print(ray.get(ready))
        except ZeroDivisionError:
            failed.append(ready)
    print(len(failed), "failed")


if __name__ == "__main__":
    main()
