"""A consumer of a queue whose producer waits for the consumer.

The producer first asks the consumer how many items to make. The consumer is busy: it waits for the first item.

Expected: stalled
Members: Consumer.eat, Producer.cook
Points at: wanted: int = ray.get(consumer.wanted.remote())
Next step: If Consumer.wanted, which is queued, would end the wait, let it run: raise max_concurrency
"""

import os
import time
from typing import Any

import ray
from ray.util.queue import Queue


class Consumer:
    def wanted(self) -> int:
        return 3

    def eat(self, dishes: Any) -> str:
        return str(dishes.get())


class Producer:
    def cook(self, dishes: Any, consumer: Any) -> None:
        time.sleep(0.5)  # to heat the oven
        wanted: int = ray.get(consumer.wanted.remote())
        for number in range(wanted):
            dishes.put(f"dish {number}")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    dishes = Queue(actor_options={"num_cpus": 0})
    consumer: Any = ray.remote(Consumer).options(name="consumer").remote()
    producer: Any = ray.remote(Producer).options(name="producer").remote()
    ray.get([consumer.__ray_ready__.remote(), producer.__ray_ready__.remote()])
    eaten = consumer.eat.remote(dishes)
    cooked = producer.cook.remote(dishes, consumer)
    print("ready", flush=True)
    print(ray.get([eaten, cooked]))


if __name__ == "__main__":
    main()
