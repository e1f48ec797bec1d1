"""A lock is an actor with one slot: it runs the work of a caller that holds it, and nested work takes another lock.

It can hang: overlapping jobs that take the two lock actors in opposite orders each wait for the other's slot.
"""

import time

import ray


@ray.remote
class LockedSection:
    def __init__(self, name):
        self.name = name

    def run(self, *inner):
        return [self.name, *(ray.get(inner[0].run.remote(*inner[1:])) if inner else [])]


@ray.remote(num_cpus=0)
def job(first, second):
    return ray.get(first.run.remote(second))


ray.init(num_cpus=2, include_dashboard=False)
table, index = LockedSection.remote("table"), LockedSection.remote("index")
ray.get([table.run.remote(), index.run.remote(), job.remote(table, index)])
one = job.remote(table, index)
time.sleep(0.35)
print(ray.get([one, job.remote(index, table)]))
