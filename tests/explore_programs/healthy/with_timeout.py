"""Two actors call each other and give up after half a second.

It cannot hang: a ray.get with a timeout ends, and the slot of its actor is free again.
"""

import time

import ray
from ray.exceptions import GetTimeoutError


@ray.remote
class Peer:
    def meet(self, other):
        self.other = other

    def ping(self):
        return 1

    def work(self):
        try:
            return ray.get(self.other.ping.remote(), timeout=0.5)
        except GetTimeoutError:
            return None


ray.init(num_cpus=2, include_dashboard=False)
left, right = Peer.remote(), Peer.remote()
ray.get([left.meet.remote(right), right.meet.remote(left)])
first = left.work.remote()
time.sleep(0.1)
print(ray.get([first, right.work.remote()]))
