"""Of two replicas the first to be created leads, and the other one follows; each finds the other by name.

It can hang: if both look for a leader before either is registered as leader, both follow and wait for each other.
"""

import time

import ray


@ray.remote(num_cpus=0)
class Registry:
    def __init__(self):
        self.leader = None

    def find(self):
        return self.leader

    def claim(self, name):
        self.leader = self.leader or name


@ray.remote(num_cpus=0)
class Replica:
    def __init__(self, name, other):
        self.name, self.other = name, other

    def state(self):
        return self.name

    def start(self):
        registry = ray.get_actor("registry", namespace="app")
        if ray.get(registry.find.remote()) is None:
            ray.get(registry.claim.remote(self.name))
            following = ray.get_actor(self.other, namespace="app")
            return ray.get(following.state.remote())
        return "follows"


ray.init(num_cpus=2, namespace="app", include_dashboard=False)
registry = Registry.options(name="registry").remote()
replicas = [Replica.options(name=name).remote(name, other) for name, other in (("a", "b"), ("b", "a"))]
ray.get([registry.find.remote(), *(one.state.remote() for one in replicas)])
first = replicas[0].start.remote()
time.sleep(0.3)
print(ray.get([first, replicas[1].start.remote()]))
