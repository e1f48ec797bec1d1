"""Two consumers that wait for work from a queue, and a driver that waits to be ended.

The queue is empty. Any program that knows the name of the queue may put something into it at any time.

Expected: running
Members: Consumer.run
Points at: return str(jobs.get())
Next step: waits for an item in the queue: search the code for where it should come from
"""

import os
import signal
from typing import Any

import ray
from ray.util.queue import Queue


class Consumer:
    def run(self, jobs: Queue) -> str:
        return str(jobs.get())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    jobs = Queue(actor_options={"name": "jobs", "num_cpus": 0})
    consumers: list[Any] = [ray.remote(Consumer).options(name=f"consumer {i}").remote() for i in range(2)]
    for consumer in consumers:
        consumer.run.remote(jobs)
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
