"""Two readers of a `streaming_split`, the second of which loads a model before it begins to read.

Unlike in the hang, the second reader is only slow, and waits for no other reader.

Expected: running
Members: driver data_split_slow_reader.py
Points at: time.sleep(seconds)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


class Reader:
    def count(self, split: ray.data.DataIterator, seconds: float) -> int:
        time.sleep(seconds)
        return sum(len(batch["id"]) for batch in split.iter_batches())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    splits = ray.data.range(100).streaming_split(2)
    readers: list[Any] = [ray.remote(Reader).options(name=f"reader {at}", num_cpus=0).remote() for at in range(2)]
    ray.get([reader.__ray_ready__.remote() for reader in readers])
    counts = [readers[0].count.remote(splits[0], 0.0), readers[1].count.remote(splits[1], 1000.0)]
    print("ready", flush=True)
    print(ray.get(counts))


if __name__ == "__main__":
    main()
