"""An actor with four slots lets two calls at a time ask the store, by a semaphore.

It cannot hang: the calls that hold the semaphore wait only for the store, which waits for nothing.
"""

import threading

import ray


@ray.remote
class Store:
    def read(self):
        return 1


@ray.remote(max_concurrency=4)
class Reader:
    def __init__(self, store):
        self.store = store
        self.limit = threading.Semaphore(2)

    def read(self):
        with self.limit:
            return ray.get(self.store.read.remote())


ray.init(num_cpus=2, include_dashboard=False)
reader = Reader.remote(Store.remote())
print(ray.get([reader.read.remote() for _ in range(6)]))
