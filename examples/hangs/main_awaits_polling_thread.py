"""A task whose main thread waits for its watcher thread, which polls for a task that needs the CPUs of that same task.

The main thread waits for an event, and releases no CPU while it does.

Expected: deadlock
Members: run
Points at: ready, _ = ray.wait([answer], timeout=0.3)
Next step: Set num_cpus=0 for run
"""

import os
import threading

import ray


@ray.remote
def square(number: int) -> int:
    return number * number


def watch(done: threading.Event, stop: threading.Event) -> None:
    answer = square.remote(3)
    while not stop.is_set():
        ready, _ = ray.wait([answer], timeout=0.3)
        if ready:
            done.set()


@ray.remote(num_cpus=2)
def run() -> str:
    done, stop = threading.Event(), threading.Event()
    threading.Thread(target=watch, args=(done, stop), name="watcher", daemon=True).start()
    done.wait()
    stop.set()
    return "done"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    end = run.remote()
    print("ready", flush=True)
    print(ray.get(end))


if __name__ == "__main__":
    main()
