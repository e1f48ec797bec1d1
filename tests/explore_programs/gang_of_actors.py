"""Three actors with a CPU each are created before any of them begins to work.

It can hang: with fewer than three CPUs the last one is never created, and those that wait for it never end.
"""

import ray


@ray.remote(num_cpus=1)
class Member:
    def rank(self):
        return 1

    def gather(self, others):
        return sum(ray.get([one.rank.remote() for one in others]))


ray.init(num_cpus=4, include_dashboard=False)
members = [Member.remote() for _ in range(3)]
print(ray.get(members[0].gather.remote(members[1:])))
