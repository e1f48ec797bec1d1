"""Two async actors await each other at once.

It cannot hang: a call that awaits leaves its loop and enough slots to the other's call.
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
        return await self.other.receive.remote(packet)


ray.init(num_cpus=2, include_dashboard=False)
east, west = Router.remote(), Router.remote()
ray.get([east.connect.remote(west), west.connect.remote(east)])
first = east.forward.remote(1)
time.sleep(0.25)
print(ray.get([first, west.forward.remote(2)]))
