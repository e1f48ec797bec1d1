"""A threaded queue actor has two slots for all of its calls, and room for two items.

It can hang: if two put() calls wait for room, they hold both slots, so that no get() can ever make room.
"""

import queue
import time

import ray


@ray.remote(max_concurrency=2)
class BoundedQueue:
    def __init__(self):
        self.items = queue.Queue(maxsize=2)

    def put(self, item):
        self.items.put(item)

    def get(self):
        return self.items.get()


@ray.remote(num_cpus=0)
def produce(bounded, begin):
    for item in range(begin, begin + 3):
        ray.get(bounded.put.remote(item))
        time.sleep(0.3)


@ray.remote(num_cpus=0)
def transform(item):
    return item * 2


@ray.remote(num_cpus=0)
def consume(bounded):
    return [ray.get(transform.remote(ray.get(bounded.get.remote()))) for _ in range(6)]


ray.init(num_cpus=2, include_dashboard=False)
bounded = BoundedQueue.remote()
ray.get([bounded.put.remote(0), bounded.get.remote()])
results = consume.remote(bounded)
producers = [produce.remote(bounded, begin) for begin in (0, 10)]
print(ray.get(results), ray.get(producers))
