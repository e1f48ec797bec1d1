"""A `streaming_split` of two, of which only the first is read: the other readers start after it has ended.

Ray Data starts a split dataset when all of its splits are read. The driver waits for the first reader before it passes
on the second split. So the first reader waits for ever in its coordinator, which polls ten times a second.

Expected: deadlock
Members: Reader.count, driver data_split_without_reader.py
Points at: rows = [ray.get(reader.count.remote(split)) for reader, split in zip(readers, splits, strict=True)]
Needs: ray[data]
Next step: Read all splits at the same time: start every reader before waiting for one of them
"""

import os
from typing import Any

import ray


class Reader:
    def count(self, split: ray.data.DataIterator) -> int:
        return sum(len(batch["id"]) for batch in split.iter_batches())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    splits = ray.data.range(100).streaming_split(2)
    readers: list[Any] = [ray.remote(Reader).options(name=f"reader {at}", num_cpus=0).remote() for at in range(2)]
    print("ready", flush=True)
    rows = [ray.get(reader.count.remote(split)) for reader, split in zip(readers, splits, strict=True)]
    print(rows)


if __name__ == "__main__":
    main()
