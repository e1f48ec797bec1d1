"""A task whose main thread waits for its watcher thread, which polls for a file.

Each thread waits for an event that only the other one sets. But the watcher waits with a timeout, and polls for the
file in between.

Expected: running (finding: polling)
Points at: done.wait()
"""

import os
import threading

import ray

FLAG = "/tmp/ray-example-done"


@ray.remote
def square(number: int) -> int:
    return number * number


def watch(done: threading.Event, stop: threading.Event) -> None:
    while not stop.wait(0.3):
        if os.path.exists(FLAG):
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
