"""A consumer that polls an empty queue.

There is no work at present. The consumer polls with a timeout, so it can be stopped at any time.

Expected: running
Members: driver idle_queue.py
Points at: return str(jobs.get(timeout=1.0))
"""

import os
from queue import Empty
from typing import Any

import ray
from ray.util.queue import Queue

ATTEMPTS = 900


class Consumer:
    def run(self, jobs: Any) -> str:
        for _ in range(ATTEMPTS):
            try:
                return str(jobs.get(timeout=1.0))
            except Empty:
                continue
        return "nothing to do today"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    jobs = Queue(actor_options={"num_cpus": 0})
    consumer: Any = ray.remote(Consumer).options(name="consumer").remote()
    ray.get(consumer.__ray_ready__.remote())
    done = consumer.run.remote(jobs)
    print("ready", flush=True)
    print(ray.get(done))


if __name__ == "__main__":
    main()
