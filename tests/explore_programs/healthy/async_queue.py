"""An async actor passes items on through a bounded queue of asyncio.

It cannot hang: an async actor has a thousand slots, and an await leaves its event loop to others.
"""

import asyncio
import time

import ray


@ray.remote
class AsyncQueue:
    def __init__(self):
        self.items = asyncio.Queue(maxsize=1)

    async def put(self, item):
        await self.items.put(item)

    async def get(self):
        return await self.items.get()


@ray.remote(num_cpus=0)
def produce(bounded, begin):
    for item in range(begin, begin + 3):
        ray.get(bounded.put.remote(item))
        time.sleep(0.05)


@ray.remote(num_cpus=0)
def consume(bounded):
    return [ray.get(bounded.get.remote()) for _ in range(6)]


ray.init(num_cpus=2, include_dashboard=False)
bounded = AsyncQueue.remote()
results = consume.remote(bounded)
producers = [produce.remote(bounded, begin) for begin in (0, 10)]
print(ray.get(results), ray.get(producers))
