"""Two actors with two slots each call each other, one call of each at a time.

It cannot hang: work() holds one slot of its actor, and ping() always has the other one.
"""

import time

import ray


@ray.remote(max_concurrency=2)
class Peer:
    def meet(self, other):
        self.other = other

    def ping(self):
        return 1

    def work(self):
        return ray.get(self.other.ping.remote())


ray.init(num_cpus=2, include_dashboard=False)
left, right = Peer.remote(), Peer.remote()
ray.get([left.meet.remote(right), right.meet.remote(left)])
first = left.work.remote()
time.sleep(0.1)
print(ray.get([first, right.work.remote()]))
