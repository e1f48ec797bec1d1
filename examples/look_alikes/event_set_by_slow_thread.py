"""A task that waits for an event, which another thread will set after a slow result.

An event does not store which thread will set it. That thread waits too, for a task that is working.

Expected: running
Members: driver event_set_by_slow_thread.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time

import ray


@ray.remote
def weigh(seconds: float) -> float:
    time.sleep(seconds)
    return 80.5


def note(weight: "ray.ObjectRef[float]", noted: threading.Event) -> None:
    print(ray.get(weight))
    noted.set()


@ray.remote
def examine(seconds: float) -> None:
    noted = threading.Event()
    threading.Thread(target=note, args=(weigh.remote(seconds), noted), name="scribe").start()
    noted.wait()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    examined = examine.remote(900.0)
    print("ready", flush=True)
    print(ray.get(examined))


if __name__ == "__main__":
    main()
