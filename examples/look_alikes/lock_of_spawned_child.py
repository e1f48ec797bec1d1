"""A spawned child process holds a lock of its own while it works, and its other thread waits for that lock.

Expected: blocked
Members: Loader.load
Next step: it sleeps there
"""

import multiprocessing
import os
import threading
import time
from typing import Any

import ray


def work() -> None:
    lock = threading.RLock()
    waiting = threading.Thread(target=lambda: lock.acquire())
    with lock:
        waiting.start()
        time.sleep(900)


class Loader:
    def load(self) -> int:
        child = multiprocessing.get_context("spawn").Process(target=work)
        child.start()
        child.join()
        return child.exitcode or 0


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    loader: Any = ray.remote(Loader).options(num_cpus=0).remote()
    loaded = loader.load.remote()
    print("ready", flush=True)
    print(ray.get(loaded))


if __name__ == "__main__":
    main()
