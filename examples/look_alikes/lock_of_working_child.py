"""A child process holds a lock of its own while it works, and its other thread waits for that lock.

Expected: running
Members: Loader.load
"""

import os
import subprocess
import sys
from typing import Any

import ray

PROGRAM = """
import threading, time
lock = threading.RLock()
with lock:
    threading.Thread(target=lock.acquire, daemon=True).start()
    time.sleep(900)
"""


class Loader:
    def load(self) -> int:
        return subprocess.run([sys.executable, "-c", PROGRAM]).returncode


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    loader: Any = ray.remote(Loader).options(num_cpus=0).remote()
    loaded = loader.load.remote()
    print("ready", flush=True)
    print(ray.get(loaded))


if __name__ == "__main__":
    main()
