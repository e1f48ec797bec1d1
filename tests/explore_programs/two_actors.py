"""Two actors call each other, usually one after the other.

It can hang: if Left still waits for Right when right.work() starts, each actor's only slot waits for the other's.
"""

import time

import ray


@ray.remote
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
