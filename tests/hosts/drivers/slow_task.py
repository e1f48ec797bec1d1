"""A driver that waits for tasks on another host, one after another: slow_task.py NODE_ID. Prints `ready` first."""

import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def slow() -> None:
    time.sleep(0.5)


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    task = slow.options(scheduling_strategy=NodeAffinitySchedulingStrategy(sys.argv[1], soft=False))
    ray.get(task.remote())
    print("ready", flush=True)
    while True:
        ray.get(task.remote())
