"""ray.util.queue: a narrow queue between two producers and two consumers, and one that is empty most of the time."""

import random
import time

import ray
from ray.util.queue import Empty, Queue


@ray.remote(num_cpus=0)
def produce(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.put(number)
        time.sleep(random.uniform(0, 0.04))


@ray.remote(num_cpus=0)
def consume(queue: Queue, count: int) -> int:
    total = 0
    for _ in range(count):
        total += queue.get()
        time.sleep(random.uniform(0, 0.06))
    return total


@ray.remote(num_cpus=0)
def poll(queue: Queue) -> int:
    while True:
        try:
            return int(queue.get(timeout=0.2))
        except Empty:
            continue


def main() -> None:
    ray.init()
    narrow, quiet = Queue(maxsize=2), Queue()
    narrow.put(0)
    narrow.get()
    print("ready", flush=True)
    while True:
        poller = poll.remote(quiet)
        for _ in range(3):
            producers = [produce.remote(narrow, 20) for _ in range(2)]
            assert sum(ray.get([consume.remote(narrow, 20) for _ in range(2)])) == 380
            ray.get(producers)
        quiet.put(1)
        ray.get(poller)


if __name__ == "__main__":
    main()
