"""Two shards copy to each other in their group "sync", which has one slot; other calls have their own group.

It can hang: if both copies overlap, each holds the slot of "sync" that the other one's receive() needs.
"""

import time

import ray


@ray.remote(concurrency_groups={"sync": 1, "io": 2})
class Shard:
    @ray.method(concurrency_group="io")
    def ping(self):
        return True

    @ray.method(concurrency_group="sync")
    def receive(self):
        return 1

    @ray.method(concurrency_group="sync")
    def copy(self, other):
        return ray.get(other.receive.remote())


ray.init(num_cpus=2, include_dashboard=False)
one, two = Shard.remote(), Shard.remote()
ray.get([one.ping.remote(), two.ping.remote()])
first = one.copy.remote(two)
time.sleep(0.2)
print(ray.get([first, two.copy.remote(one)]))
