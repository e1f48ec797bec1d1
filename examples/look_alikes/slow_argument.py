"""A chain of tasks, each of which takes the result of the previous one; the first is slow.

Only the first task runs. The others hold no resource and wait for their argument.

Expected: running
Members: driver slow_argument.py, refine
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def dig(seconds: float) -> str:
    time.sleep(seconds)
    return "ore"


@ray.remote
def refine(thing: str) -> str:
    return f"refined {thing}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    thing = dig.remote(900.0)
    for _ in range(3):
        thing = refine.remote(thing)
    print("ready", flush=True)
    print(ray.get(thing))


if __name__ == "__main__":
    main()
