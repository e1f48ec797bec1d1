"""A `ray.get` inside a method of an async actor, for the result of another task (as in ray#7197).

It blocks the event loop, so `status` cannot start meanwhile. This is bad style, but the task that it waits for does not
need the event loop.

Expected: running
Members: driver sync_get_of_slow_task.py
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


@ray.remote
def count_votes(seconds: float) -> int:
    time.sleep(seconds)
    return 1000


class Office:
    async def status(self) -> str:
        return "open"

    async def result(self, seconds: float) -> int:
        return ray.get(count_votes.remote(seconds))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    office: Any = ray.remote(Office).options(name="office").remote()
    ray.get(office.status.remote())
    office.result.remote(900.0)
    time.sleep(1.0)  # until it has begun
    status = office.status.remote()
    print("ready", flush=True)
    print(ray.get(status))


if __name__ == "__main__":
    main()
