"""A threaded gate has two slots. Two runners wait at it until the starter, who asks for the time first, opens it.

It can hang: if both runners arrive first, they hold both slots, so that open() can never run.
"""

import threading
import time

import ray


@ray.remote(max_concurrency=2)
class Gate:
    def __init__(self):
        self.is_open = threading.Event()

    def open(self):
        self.is_open.set()

    def pass_through(self):
        return self.is_open.wait()


@ray.remote
class Clock:
    def now(self):
        return time.time()


@ray.remote
class Starter:
    def start(self, clock, gate):
        ray.get(clock.now.remote())
        ray.get(gate.open.remote())


ray.init(num_cpus=2, include_dashboard=False)
clock, gate, starter = Clock.remote(), Gate.remote(), Starter.remote()
ray.get([clock.now.remote(), gate.__ray_ready__.remote(), starter.__ray_ready__.remote()])
started = starter.start.remote(clock, gate)
time.sleep(0.4)
print(ray.get([started, gate.pass_through.remote(), gate.pass_through.remote()]))
