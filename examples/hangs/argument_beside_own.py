"""A task that waits for another one, whose argument does not fit into the object store beside its own (ray#62093).

The arguments of all tasks that run on a node may take 70 % of its object store. Those of a task are held until it ends,
so `merge` holds 80 of 140 MiB while it waits for `sorted_keys`, which needs 80 MiB. All CPUs are free.

Expected: deadlock
Members: merge, sorted_keys
Points at: keys = ray.get(sorted_keys.remote(others[0]))
Behind: driver argument_beside_own.py
Needs: small object store
Next step: Give the nodes larger object stores, or pass less data as arguments, which tasks hold until they end
"""

import os
from typing import Any

import numpy as np
import ray

MIB = 1024 * 1024


@ray.remote
def sorted_keys(table: Any) -> int:
    return int(table[::MIB].sum())


@ray.remote
def merge(table: Any, others: list[Any]) -> int:
    keys = ray.get(sorted_keys.remote(others[0]))
    return int(keys) + len(table)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    store = 200 * MIB if own else None
    ray.init(address, num_cpus=4 if own else None, object_store_memory=store, include_dashboard=False)
    left, right = (ray.put(np.ones(80 * MIB, dtype=np.uint8)) for _ in range(2))
    merged = merge.remote(left, [right])
    print("ready", flush=True)
    print(ray.get(merged))


if __name__ == "__main__":
    main()
