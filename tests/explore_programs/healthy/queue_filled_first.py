"""Permits are in a queue from the begin, as many as the slots: an acquire() takes one, and a release() puts it back.

It cannot hang: while the two workers hold both permits, they wait for nothing, and no acquire() waits with them.
"""

import queue
import time

import ray


@ray.remote(max_concurrency=2)
class Permits:
    def __init__(self):
        self.permits = queue.Queue()
        self.permits.put("first")
        self.permits.put("second")

    def acquire(self):
        return self.permits.get()

    def release(self, permit):
        self.permits.put(permit)


@ray.remote(num_cpus=0)
def work(permits):
    permit = ray.get(permits.acquire.remote())
    time.sleep(0.1)
    ray.get(permits.release.remote(permit))
    return permit


ray.init(num_cpus=2, include_dashboard=False)
permits = Permits.remote()
print(ray.get([work.remote(permits) for _ in range(2)]), ray.get(work.remote(permits)))
