"""Two async actors with max_concurrency=1 await each other, usually one after the other.

It can hang: an await does not free the only slot, so two overlapping calls wait for each other.
"""

import time

import ray


@ray.remote(max_concurrency=1)
class Node:
    async def join(self, other):
        self.other = other

    async def version(self):
        return 1

    async def sync(self):
        return await self.other.version.remote()


ray.init(num_cpus=2, include_dashboard=False)
one, two = Node.remote(), Node.remote()
ray.get([one.join.remote(two), two.join.remote(one)])
refs = []
for node in (one, two):
    refs.append(node.sync.remote())
    time.sleep(0.2)
print(ray.get(refs))
