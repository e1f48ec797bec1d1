"""Two actors create children, and none of the four holds a CPU.

It cannot hang: an actor with num_cpus=0 can always be placed.
"""

import ray


@ray.remote(num_cpus=0)
class Child:
    def answer(self):
        return 1


@ray.remote(num_cpus=0)
class Parent:
    def run(self):
        child = Child.remote()
        return ray.get(child.answer.remote())


ray.init(num_cpus=4, include_dashboard=False)
parents = [Parent.remote() for _ in range(2)]
print(ray.get([one.run.remote() for one in parents]))
