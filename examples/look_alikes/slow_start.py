"""A task whose worker process is still starting.

Every worker of this job first warms up for a quarter of an hour. Until then the task has a CPU and a worker, but does
not run.

Expected: running
Members: driver slow_start.py, work
Points at: print(ray.get(work.remote()))
Next step: The worker process is still starting at slow_start.py
"""

import os
import time

import ray


def warm_up() -> None:
    time.sleep(900.0)


@ray.remote
def work() -> str:
    return "worked"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    setup = {"worker_process_setup_hook": warm_up}
    ray.init(address, num_cpus=2 if address == "local" else None, runtime_env=setup, include_dashboard=False)
    print("ready", flush=True)
    print(ray.get(work.remote()))


if __name__ == "__main__":
    main()
