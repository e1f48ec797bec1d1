"""A thread that takes an RLock which it already holds.

With a Lock it would wait for itself. An RLock counts, so the thread continues and waits for a slow task while other
threads wait for the lock.

Expected: running
Members: driver rlock_taken_twice.py, thread "reader" of driver rlock_taken_twice.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time

import ray

lock = threading.RLock()


@ray.remote
def measure(seconds: float) -> float:
    time.sleep(seconds)
    return 36.6


def read() -> None:
    with lock:
        print("read")


def write(value: "ray.ObjectRef[float]") -> None:
    with lock:
        print(ray.get(value))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    with lock:
        threading.Thread(target=read, name="reader").start()
        print("ready", flush=True)
        write(measure.remote(900.0))


if __name__ == "__main__":
    main()
