"""Two actors hold a CPU each and create a child that needs one too.

It can hang: with fewer than four CPUs a child cannot be placed while both parents wait for theirs.
"""

import ray


@ray.remote(num_cpus=1)
class Child:
    def answer(self):
        return 1


@ray.remote(num_cpus=1)
class Parent:
    def run(self):
        child = Child.remote()
        return ray.get(child.answer.remote())


ray.init(num_cpus=4, include_dashboard=False)
parents = [Parent.remote() for _ in range(2)]
print(ray.get([one.run.remote() for one in parents]))
