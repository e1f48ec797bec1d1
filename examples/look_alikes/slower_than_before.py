"""A call that takes long, though the calls of its function before took a moment.

Expected: running
Members: driver slower_than_before.py
Points at: time.sleep(seconds)
Next step: load sleeps at slower_than_before.py
"""

import os
import time

import ray


@ray.remote
def load(seconds: float) -> int:
    time.sleep(seconds)
    return round(seconds)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    cpus = 2 if address == "local" else None
    ray.init(address, num_cpus=cpus, include_dashboard=False)
    for _ in range(40):
        ray.get(load.remote(0.1))
    last = load.remote(900.0)
    time.sleep(3.0)  # Ray's task events are a second late
    print("ready", flush=True)
    print(ray.get(last))


if __name__ == "__main__":
    main()
