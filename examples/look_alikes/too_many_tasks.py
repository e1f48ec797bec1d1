"""Fifty tasks on two CPUs: two run, and the others wait for a CPU.

It is slow, but each task will run.

Expected: running (finding: starved)
Members: driver too_many_tasks.py, work
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote
def work(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    done = [work.remote(900.0 / 25) for _ in range(50)]
    print("ready", flush=True)
    print(sum(ray.get(done)))


if __name__ == "__main__":
    main()
