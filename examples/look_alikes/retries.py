"""A task that failed twice and is in its third attempt.

The processes of the first two attempts died. The third attempt is working, under the same id.

Expected: running
Members: driver retries.py
Points at: time.sleep(seconds)
Next step: `ray list tasks --filter name=climb --detail` shows the errors of climb
"""

import os
import time
from typing import Any

import ray


class Rope:
    def __init__(self) -> None:
        self.attempts = 0

    def tie(self) -> int:
        self.attempts += 1
        return self.attempts


@ray.remote(max_retries=5)
def climb(rope: Any, seconds: float) -> str:
    if ray.get(rope.tie.remote()) < 3:
        os._exit(1)  # a fall
    time.sleep(seconds)
    return "the view"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rope: Any = ray.remote(Rope).options(name="rope").remote()
    view = climb.remote(rope, 900.0)
    print("ready", flush=True)
    print(ray.get(view))


if __name__ == "__main__":
    main()
