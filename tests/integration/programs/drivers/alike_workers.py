"""Ten actors that do the same: each has five threads that wait, and waits for three tasks for which there is no CPU."""

import os
import threading
import time
from typing import Any

import ray

ALIKE, THREADS, TASKS = 10, 5, 3


@ray.remote(num_cpus=1000)
def never() -> None:
    """Is never scheduled."""


class Member:
    def begin(self) -> None:
        released = threading.Event()
        for number in range(THREADS):
            threading.Thread(target=released.wait, name=f"loader-{number}", daemon=True).start()

    def wait(self) -> None:
        ray.get([never.remote() for _ in range(TASKS)])


def main() -> None:
    ray.init(os.environ.get("RAY_ADDRESS", "local"), log_to_driver=False)
    members: list[Any] = [ray.remote(Member).options(num_cpus=0).remote() for _ in range(ALIKE)]
    ray.get([member.begin.remote() for member in members])
    waits = [member.wait.remote() for member in members]
    time.sleep(1)
    print("ready", flush=True)
    ray.get(waits)


if __name__ == "__main__":
    main()
