"""A task whose main thread waits for its scheduler thread, which needs the CPUs of that same task.

`run` holds both CPUs and waits for the first result in its queue. Its scheduler thread waits for a task in `ray.get`.
Outside the main thread, `ray.get` releases no CPU.

Expected: deadlock
Members: run
Points at: results.put(ray.get(square.remote(number)))
Next step: Set num_cpus=0 for run
"""

import os
from queue import Queue
from threading import Thread

import ray


@ray.remote
def square(number: int) -> int:
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
