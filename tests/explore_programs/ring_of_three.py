"""Three actors ask the next one around a ring, at intervals.

It can hang: if all three calls overlap, every actor waits for the slot of the next one.
"""

import time

import ray


@ray.remote
class Station:
    def __init__(self):
        self.stock = 3

    def follow(self, following):
        self.following = following

    def take(self):
        self.stock -= 1
        return self.stock

    def restock(self):
        self.stock += ray.get(self.following.take.remote())
        return self.stock


ray.init(num_cpus=2, include_dashboard=False)
stations = [Station.remote() for _ in range(3)]
ray.get([one.follow.remote(stations[(at + 1) % 3]) for at, one in enumerate(stations)])
refs = []
for station in stations:
    refs.append(station.restock.remote())
    time.sleep(0.15)
print(ray.get(refs))
