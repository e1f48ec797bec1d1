"""A task whose main thread waits for its scheduler thread, which waits for a task that needs no CPU.

`run` holds both CPUs and waits for the first result in its queue. The task of the scheduler thread needs no CPU, and
runs; it is slow.

Expected: running
Members: run
Points at: time.sleep(900.0)
"""

import os
import time
from queue import Queue
from threading import Thread

import ray


@ray.remote(num_cpus=0)
def square(number: int) -> int:
    time.sleep(900.0)
    return number * number


def schedule(results: "Queue[int]") -> None:
    for number in range(3):
        results.put(ray.get(square.remote(number)))


@ray.remote(num_cpus=2)
def run() -> int:
    results: Queue[int] = Queue()
    Thread(target=schedule, args=(results,), name="scheduler", daemon=True).start()
    return sum(results.get() for _ in range(3))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    total = run.remote()
    print("ready", flush=True)
    print(ray.get(total))


if __name__ == "__main__":
    main()
