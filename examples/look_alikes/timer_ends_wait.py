"""A task whose main thread waits for an event that a timer sets.

Expected: running (finding: polling)
Points at: rung.wait()
Next step: thread "Thread-1" is a timer that calls Event.set in at most
"""

import os
import threading

import ray


@ray.remote
def sleep_until(seconds: float) -> str:
    rung = threading.Event()
    threading.Timer(seconds, rung.set).start()
    rung.wait()
    return "good morning"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    greeting = sleep_until.remote(900.0)
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
