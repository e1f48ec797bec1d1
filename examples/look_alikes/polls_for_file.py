"""A driver that polls for a file, which a running task writes at its end.

Nothing waits in Ray: the driver sleeps between two looks, and it has not kept the ref of the task. But the task runs,
so the job does not stand still.

Expected: running
Outside: driver in sleep
Next step: driver polls_for_file.py polls os.path.exists in the loop at polls_for_file.py
"""

import os
import tempfile
import time
from typing import Any

import ray


def write(path: str) -> None:
    time.sleep(900)
    with open(path, "w") as file:
        file.write("done")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    path = os.path.join(tempfile.gettempdir(), f"written_by_task_{os.getpid()}")
    writer: Any = ray.remote(write)
    writer.remote(path)
    time.sleep(2.0)  # until it has begun
    print("ready", flush=True)
    while not os.path.exists(path):
        time.sleep(1)


if __name__ == "__main__":
    main()
