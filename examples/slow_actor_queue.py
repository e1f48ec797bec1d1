"""A driver whose call is queued behind fifty others on one slow actor.

It looks like a hang, because no call ends for minutes. But the clerk works: one letter after the other. All waits
depend on the line that the clerk executes.

Expected: running
Members: driver slow_actor_queue.py, Clerk.stamp
Points at: time.sleep(60)
Ends in: Clerk.stamp, 50 directly, 51 in all
"""

import os
import time
from typing import Any

import ray

LETTERS_BEFORE_MINE = 50


class Clerk:
    def stamp(self, letter: int) -> str:
        time.sleep(60)
        return f"letter {letter}: stamped"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    clerk: Any = ray.remote(Clerk).options(name="clerk").remote()
    ray.get(clerk.__ray_ready__.remote())
    letters = [clerk.stamp.remote(i) for i in range(LETTERS_BEFORE_MINE + 1)]
    print("ready", flush=True)
    print(ray.get(letters[-1]))


if __name__ == "__main__":
    main()
