"""Two readers of a `streaming_split`, the second of which calls the first before it begins to read.

The first reader is busy: it waits until both splits are read. So the call to it stays queued.

Expected: deadlock
Members: Reader.count, Reader.scale, driver data_split_reader_asks_other.py
Points at: scale: int = ray.get(first.scale.remote()) if first else 1
Needs: ray[data]
Next step: let no reader wait for another before it iterates
"""

import os
from typing import Any

import ray


class Reader:
    def scale(self) -> int:
        return 2

    def count(self, split: ray.data.DataIterator, first: Any = None) -> int:
        scale: int = ray.get(first.scale.remote()) if first else 1
        return scale * sum(len(batch["id"]) for batch in split.iter_batches())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    splits = ray.data.range(100).streaming_split(2)
    readers: list[Any] = [ray.remote(Reader).options(name=f"reader {at}", num_cpus=0).remote() for at in range(2)]
    ray.get([reader.__ray_ready__.remote() for reader in readers])
    first = readers[0].count.remote(splits[0])
    second = readers[1].count.remote(splits[1], readers[0])
    print("ready", flush=True)
    print(ray.get([first, second]))


if __name__ == "__main__":
    main()
