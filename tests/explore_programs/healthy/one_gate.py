"""Two actors call each other, but both calls go through one gate with a single slot.

It cannot hang: the gate runs one call at a time, so the two calls never overlap.
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


@ray.remote
class Gate:
    def run(self, peer):
        return ray.get(peer.work.remote())


ray.init(num_cpus=2, include_dashboard=False)
gate, left, right = Gate.remote(), Peer.remote(), Peer.remote()
ray.get([left.meet.remote(right), right.meet.remote(left)])
first = gate.run.remote(left)
time.sleep(0.1)
print(ray.get([first, gate.run.remote(right)]))
