"""A consumer of a queue whose producer is slow.

The queue is an async actor; its `get` is a coroutine that waits inside the actor until an item is put.

Expected: running
Members: Consumer.eat
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray
from ray.util.queue import Queue


class Consumer:
    def eat(self, dishes: Any) -> str:
        return str(dishes.get())


class Producer:
    def cook(self, dishes: Any, seconds: float) -> None:
        time.sleep(seconds)
        dishes.put("roast")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    dishes = Queue(actor_options={"num_cpus": 0})
    consumer: Any = ray.remote(Consumer).options(name="consumer").remote()
    producer: Any = ray.remote(Producer).options(name="producer").remote()
    ray.get([consumer.__ray_ready__.remote(), producer.__ray_ready__.remote()])
    eaten = consumer.eat.remote(dishes)
    cooked = producer.cook.remote(dishes, 900.0)
    print("ready", flush=True)
    print(ray.get([eaten, cooked]))


if __name__ == "__main__":
    main()
