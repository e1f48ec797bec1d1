"""A driver that polls the size of a buffer, while the producer adds an item every second.

Every call succeeds at once, and the buffer grows.

Expected: running (finding: polling)
Members: driver polls_buffer_of_slow_producer.py
Points at: time.sleep(0.2)
"""

import os
import threading
import time
from typing import Any

import ray


class Buffer:
    def __init__(self) -> None:
        self.items: list[int] = []

    def add(self, item: int) -> None:
        self.items.append(item)

    def size(self) -> int:
        return len(self.items)


class Producer:
    def __init__(self) -> None:
        self.more = threading.Event()

    def produce(self, buffer: Any) -> None:
        for item in range(1000):
            self.more.wait(1.0)
            ray.get(buffer.add.remote(item))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    buffer: Any = ray.remote(Buffer).options(name="buffer").remote()
    producer: Any = ray.remote(Producer).options(name="producer").remote()
    producer.produce.remote(buffer)
    print("ready", flush=True)
    while ray.get(buffer.size.remote()) < 1000:
        time.sleep(0.2)
    print("full")


if __name__ == "__main__":
    main()
