"""Queues that hold all CPUs (as in ray#19416).

A broker opens a queue for each channel. Each queue is an actor that holds a CPU, so none is left for the task that
would fill them. The broker is still working and closes the queues when it is done: the task is starved, and the report
names the holders of the CPUs.

Expected: running (finding: starved)
Members: driver queues_take_cpus.py, fill
Points at: print(ray.get(filled))
"""

import os
import time
from typing import Any

import ray
from ray.util.queue import Queue


class Broker:
    def open(self, count: int) -> None:
        self.channels = [Queue(actor_options={"num_cpus": 1}) for _ in range(count)]
        assert all(channel.empty() for channel in self.channels)  # each answers, so it has its CPU

    def serve(self, seconds: float) -> None:
        time.sleep(seconds)
        self.channels = []


@ray.remote
def fill() -> str:
    return "filled"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    broker: Any = ray.remote(Broker).options(num_cpus=0, name="broker").remote()
    ray.get(broker.open.remote(int(ray.cluster_resources()["CPU"])))
    broker.serve.remote(900.0)
    filled = fill.remote()
    print("ready", flush=True)
    print(ray.get(filled))


if __name__ == "__main__":
    main()
