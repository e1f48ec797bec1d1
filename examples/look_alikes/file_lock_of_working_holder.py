"""The same with a holder of the file lock that works, and then releases it.

Expected: running
Members: Cache.store
"""

import fcntl
import os
import tempfile
import time
from typing import Any

import ray


class Cache:
    def store(self, path: str) -> int:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return file.write("stored")

    def rebuild(self, path: str) -> None:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            open(f"{path}.held", "w").close()
            time.sleep(900)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first: Any = ray.remote(Cache).options(num_cpus=0).remote()
    second: Any = ray.remote(Cache).options(num_cpus=0).remote()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/cache.lock"
        rebuilt = first.rebuild.remote(path)
        while not os.path.exists(f"{path}.held"):
            time.sleep(0.1)
        stored = second.store.remote(path)
        print("ready", flush=True)
        print(ray.get([stored, rebuilt]))


if __name__ == "__main__":
    main()
