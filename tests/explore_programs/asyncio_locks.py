"""An async actor takes two asyncio locks in an order that depends on the method.

It can hang: if load() and evict() overlap while each awaits the store, each holds the lock that the other one needs.
"""

import asyncio
import time

import ray


@ray.remote
class Store:
    def read(self):
        return 1


@ray.remote
class Cache:
    def __init__(self, store):
        self.store = store
        self.index, self.data = asyncio.Lock(), asyncio.Lock()

    async def load(self):
        async with self.index:
            value = await self.store.read.remote()
            async with self.data:
                return value

    async def evict(self):
        async with self.data:
            value = await self.store.read.remote()
            async with self.index:
                return value


ray.init(num_cpus=2, include_dashboard=False)
store = Store.remote()
cache = Cache.remote(store)
ray.get([store.read.remote(), cache.load.remote()])
first = cache.load.remote()
time.sleep(0.2)
print(ray.get([first, cache.evict.remote()]))
