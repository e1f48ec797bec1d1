"""A pool with an actor for each CPU; every second actor asks its neighbour.

It can hang: with one CPU the neighbour is the actor itself, which waits for its own only slot.
"""

import ray


@ray.remote(num_cpus=0)
class Cell:
    def value(self):
        return 1

    def step(self, neighbour):
        return ray.get(neighbour.value.remote())


ray.init(num_cpus=2, include_dashboard=False)
cells = [Cell.remote() for _ in range(int(ray.cluster_resources()["CPU"]))]
print(ray.get([cells[at].step.remote(cells[(at + 1) % len(cells)]) for at in range(0, len(cells), 2)]))
