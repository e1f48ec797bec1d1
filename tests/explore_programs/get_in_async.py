"""Async methods call ray.get, which blocks the event loop of their actor.

It can hang: if both forward() calls overlap, neither loop can run the receive() that the other one waits for.
"""

import time

import ray


@ray.remote
class Router:
    async def connect(self, other):
        self.other = other

    async def receive(self, packet):
        return packet

    async def forward(self, packet):
        return ray.get(self.other.receive.remote(packet))


ray.init(num_cpus=2, include_dashboard=False)
east, west = Router.remote(), Router.remote()
ray.get([east.connect.remote(west), west.connect.remote(east)])
first = east.forward.remote(1)
time.sleep(0.25)
print(ray.get([first, west.forward.remote(2)]))
