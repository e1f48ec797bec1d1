"""A task that waits until another one has ended, because the arguments of both do not fit into the object store.

The arguments of all tasks that run on a node may take 70 % of its object store. The one of `train` is held until it
ends, and needs nothing for that.

Expected: running (finding: starved)
Members: driver argument_beside_running.py, evaluate
Points at: time.sleep(seconds)
Needs: small object store
"""

import os
import time
from typing import Any

import numpy as np
import ray

MIB = 1024 * 1024


@ray.remote
def train(table: Any, seconds: float) -> int:
    time.sleep(seconds)
    return len(table)


@ray.remote
def evaluate(table: Any) -> int:
    return int(table[::MIB].sum())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    store = 200 * MIB if own else None
    ray.init(address, num_cpus=4 if own else None, object_store_memory=store, include_dashboard=False)
    left, right = (ray.put(np.ones(80 * MIB, dtype=np.uint8)) for _ in range(2))
    training = train.remote(left, 900.0)
    time.sleep(2.0)
    score = evaluate.remote(right)
    print("ready", flush=True)
    print(ray.get(score), ray.get(training))


if __name__ == "__main__":
    main()
