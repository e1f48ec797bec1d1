"""A thread that waits for the next item of a queue, which another thread of its process is making.

A queue does not store which thread will fill it. That thread is working.

Expected: running
Members: driver thread_fed_by_queue.py, mill
Points at: return f"flour of {corn.get()}"
"""

import os
import queue
import threading
import time

import ray


def harvest(corn: "queue.Queue[str]", seconds: float) -> None:
    time.sleep(seconds)
    corn.put("corn")


@ray.remote
def mill(seconds: float) -> str:
    corn: queue.Queue[str] = queue.Queue()
    threading.Thread(target=harvest, args=(corn, seconds), name="farmer").start()
    return f"flour of {corn.get()}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    flour = mill.remote(900.0)
    print("ready", flush=True)
    print(ray.get(flour))


if __name__ == "__main__":
    main()
