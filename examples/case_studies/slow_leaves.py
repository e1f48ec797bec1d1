"""A search through a tree of actors, of which each round waits for one slow leaf.

A round asks a root, its two branches, and their six leaves. A leaf reads one shard in about 2 s. In each round some
leaf takes twice as long, and it is another one each time, because the shards are dealt anew. The slow leaf is the one
that got shard 5, which must be restored from an archive first. All callers above it only wait.

With the argument `local` shard 5 is on the disk like the others.

Expected: running
Members: driver slow_leaves.py, Branch.search
Points at: return sum(ray.get(calls))
Ends in: Archive.restore, 1 directly, 4 in all
"""

import os
import random
import sys
import time
from typing import Any

import ray

FAN_OUTS = (2, 3)
SHARDS = list(range(6))
PAGES = 20


@ray.remote(num_cpus=0)
class Archive:
    def restore(self, shard: int) -> int:
        time.sleep(random.uniform(3.0, 4.5))
        return shard


@ray.remote(num_cpus=0)
class Leaf:
    def __init__(self, archive: Any, archived: set[int]) -> None:
        self.archive = archive
        self.archived = archived

    def read(self, shards: list[int]) -> int:
        (shard,) = shards
        if shard in self.archived:
            return int(ray.get(self.archive.restore.remote(shard)))
        return read_pages(shard)


def read_pages(shard: int) -> int:
    for _ in range(PAGES):
        time.sleep(random.uniform(0.06, 0.12))
    return shard


@ray.remote(num_cpus=0)
class Branch:
    def __init__(self, fan_outs: tuple[int, ...], archive: Any, archived: set[int]) -> None:
        below = fan_outs[1:]
        self.children: list[Any] = [
            start(Branch, below, archive, archived) if below else start(Leaf, archive, archived)
            for _ in range(fan_outs[0])
        ]
        self.is_lowest = not below

    def search(self, shards: list[int]) -> int:
        parts = [shards[number :: len(self.children)] for number in range(len(self.children))]
        calls = [
            child.read.remote(part) if self.is_lowest else child.search.remote(part)
            for child, part in zip(self.children, parts, strict=True)
        ]
        return sum(ray.get(calls))


def start(kind: Any, *arguments: Any) -> Any:
    return kind.remote(*arguments)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    archived = set() if "local" in sys.argv else {5}
    root = start(Branch, FAN_OUTS, start(Archive), archived)
    chooser = random.Random(1)
    for number in range(1, 10_000):
        began = time.monotonic()
        ray.get(root.search.remote(chooser.sample(SHARDS, len(SHARDS))))
        print(f"round {number} took {time.monotonic() - began:.1f} s", flush=True)
        if number == 1:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
