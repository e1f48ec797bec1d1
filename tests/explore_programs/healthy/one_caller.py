"""Three actors ask the next one around a ring, and the only caller waits after each call.

It cannot hang: no two of the calls overlap.
"""

import ray


@ray.remote
class Station:
    def follow(self, following):
        self.following = following

    def take(self):
        return 1

    def restock(self):
        return ray.get(self.following.take.remote())


ray.init(num_cpus=2, include_dashboard=False)
stations = [Station.remote() for _ in range(3)]
ray.get([one.follow.remote(stations[(at + 1) % 3]) for at, one in enumerate(stations)])
print([ray.get(one.restock.remote()) for one in stations])
