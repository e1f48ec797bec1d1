"""A driver whose program has ended, while its last thread still waits for a running task.

Python ends no process before all threads have ended that are no daemons. This one gets the result of a slow task, so
the process ends with it.

Expected: running
Members: exit of driver exit_behind_working_thread.py (threading)
Points at: time.sleep(900)
"""

import os
import threading
import time
from typing import Any

import ray


def summarise(name: str) -> str:
    time.sleep(900)
    return f"summary of {name}"


def show(summary: Any) -> None:
    print(ray.get(summary))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    task: Any = ray.remote(summarise)
    threading.Thread(target=show, args=(task.remote("tuesday"),), name="shower").start()
    print("ready", flush=True)


if __name__ == "__main__":
    main()
