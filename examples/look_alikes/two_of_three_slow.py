"""A wait for two of three results, of which one is available and two are slow.

No call is stuck: the first of the slow ones to end is enough.

Expected: running
Members: driver two_of_three_slow.py
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def race(name: str, seconds: float) -> str:
    time.sleep(seconds)
    return name


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    hare = race.remote("hare", 0.0)
    ray.wait([hare])
    slow = [race.remote("tortoise", 900.0), race.remote("snail", 900.0)]
    print("ready", flush=True)
    done, _ = ray.wait([hare, *slow], num_returns=2)
    print(ray.get(done))


if __name__ == "__main__":
    main()
