"""An actor holds the lock of a file while it waits for a call of another actor, which needs that lock.

Expected: deadlock
Members: Cache.refresh, Cache.store
Points at: fcntl.flock(file, fcntl.LOCK_EX)
Next step: Release the file lock that Cache.store needs before waiting for another process
"""

import fcntl
import os
import tempfile
from typing import Any

import ray


class Cache:
    def store(self, path: str) -> int:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return file.write("stored")

    def refresh(self, other: Any, path: str) -> int:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            stored: int = ray.get(other.store.remote(path))
            return stored


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first: Any = ray.remote(Cache).options(num_cpus=0).remote()
    second: Any = ray.remote(Cache).options(num_cpus=0).remote()
    with tempfile.NamedTemporaryFile(suffix=".lock") as file:
        refreshed = first.refresh.remote(second, file.name)
        print("ready", flush=True)
        print(ray.get(refreshed))


if __name__ == "__main__":
    main()
