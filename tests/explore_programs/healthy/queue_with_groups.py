"""A queue actor has a slot for each of its two producers, and one more for its consumer.

It cannot hang: put() calls that wait for room never hold the slot of get(), which makes room.
"""

import queue
import time

import ray


@ray.remote(concurrency_groups={"put": 2, "get": 1})
class BoundedQueue:
    def __init__(self):
        self.items = queue.Queue(maxsize=2)

    @ray.method(concurrency_group="put")
    def put(self, item):
        self.items.put(item)

    @ray.method(concurrency_group="get")
    def get(self):
        return self.items.get()


@ray.remote(num_cpus=0)
def produce(bounded, begin):
    for item in range(begin, begin + 3):
        ray.get(bounded.put.remote(item))
        time.sleep(0.1)


@ray.remote(num_cpus=0)
def consume(bounded):
    return [ray.get(bounded.get.remote()) for _ in range(6)]


ray.init(num_cpus=2, include_dashboard=False)
bounded = BoundedQueue.remote()
results = consume.remote(bounded)
producers = [produce.remote(bounded, begin) for begin in (0, 10)]
print(ray.get(results), ray.get(producers))
