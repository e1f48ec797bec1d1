"""A full object store: a put and a task's return wait for room, as the process that would write to disk is stopped.

Prints ``ready`` once it is stopped. Its values in use cannot go to disk.
"""

import os
import threading
from typing import Any

import numpy as np
import psutil
import ray

MIB = 1024 * 1024


class Keeper:
    def fill(self) -> None:
        self.refs = [ray.put(np.ones(20 * MIB, dtype=np.uint8)) for _ in range(4)]
        self.values = ray.get(self.refs)


@ray.remote
def make() -> Any:
    return np.ones(25 * MIB, dtype=np.uint8)


def of_spilling(process: psutil.Process) -> bool:
    """Whether it writes objects of this cluster to disk."""
    try:
        is_own = process.environ().get("RAY_TMPDIR") == os.environ.get("RAY_TMPDIR")
        return is_own and "SpillWorker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def main() -> None:
    ray.init("local", num_cpus=2, object_store_memory=100 * MIB, include_dashboard=False)
    keeper: Any = ray.remote(num_cpus=0)(Keeper).options(name="keeper").remote()
    ray.get(keeper.fill.remote())
    kept = [ray.put(np.ones(15 * MIB, dtype=np.uint8)) for _ in range(2)]
    for process in filter(of_spilling, psutil.process_iter()):
        process.suspend()
    made = make.remote()
    print("ready", flush=True)
    threading.Thread(target=lambda: kept.append(ray.put(np.ones(15 * MIB, dtype=np.uint8))), daemon=True).start()
    ray.get(made)


if __name__ == "__main__":
    main()
