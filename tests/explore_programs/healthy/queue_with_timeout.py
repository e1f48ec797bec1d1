"""A queue actor with two slots has room for one item, and both of its methods give up after a while.

It cannot hang: a put() that waits for room, or a get() that waits for an item, leaves its slot in the end.
"""

import queue

import ray


@ray.remote(max_concurrency=2)
class BoundedQueue:
    def __init__(self):
        self.items = queue.Queue(maxsize=1)

    def put(self, item):
        try:
            self.items.put(item, timeout=0.5)
        except queue.Full:
            return False
        return True

    def get(self):
        try:
            return self.items.get(timeout=0.5)
        except queue.Empty:
            return None


@ray.remote(num_cpus=0)
def produce(bounded, item):
    while not ray.get(bounded.put.remote(item)):
        pass


@ray.remote(num_cpus=0)
def consume(bounded, count):
    items = []
    while len(items) < count:
        item = ray.get(bounded.get.remote())
        if item is not None:
            items.append(item)
    return items


ray.init(num_cpus=2, include_dashboard=False)
bounded = BoundedQueue.remote()
producers = [produce.remote(bounded, item) for item in (1, 2, 3)]
print(ray.get(consume.remote(bounded, 3)), ray.get(producers))
