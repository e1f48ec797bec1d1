"""Tasks wait for tasks, three levels deep, and all of them need a CPU.

It cannot hang: ray.get lends the CPU of a waiting task to others, so one CPU is enough.
"""

import ray


@ray.remote(num_cpus=1)
def count(depth):
    return 1 + sum(ray.get([count.remote(depth - 1) for _ in range(2)])) if depth else 1


ray.init(num_cpus=2, include_dashboard=False)
print(ray.get(count.remote(2)))
