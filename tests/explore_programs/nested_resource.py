"""Each request holds a unit of a custom resource while its part needs another one; there are two units.

It can hang: if both requests hold a unit before either part has one, no part can ever start.
"""

import time

import ray


@ray.remote(num_cpus=0, resources={"license": 1})
def part():
    return 1


@ray.remote(num_cpus=0, resources={"license": 1})
def request():
    return ray.get(part.remote())


ray.init(num_cpus=2, resources={"license": 2}, include_dashboard=False)
ray.get(request.remote())
first = request.remote()
time.sleep(0.4)
print(ray.get([first, request.remote()]))
