"""Workers ask the coordinator for their next item, and the coordinator asks the workers for their progress.

It can hang: if report() begins while a worker waits for next_item(), the coordinator waits for that worker.
"""

import time

import ray


@ray.remote
class Coordinator:
    def __init__(self, items):
        self.items = items

    def hire(self, workers):
        self.workers = workers

    def next_item(self):
        return self.items.pop() if self.items else None

    def report(self):
        return sum(ray.get([one.progress.remote() for one in self.workers]))


@ray.remote
class Worker:
    def __init__(self, coordinator):
        self.coordinator = coordinator
        self.done = 0

    def progress(self):
        return self.done

    def run(self):
        while ray.get(self.coordinator.next_item.remote()) is not None:
            self.done += 1
        return self.done


ray.init(num_cpus=2, include_dashboard=False)
coordinator = Coordinator.remote(list(range(6)))
workers = [Worker.remote(coordinator) for _ in range(2)]
ray.get([one.progress.remote() for one in workers])
ray.get(coordinator.hire.remote(workers))
runs = [one.run.remote() for one in workers]
time.sleep(0.5)
print(ray.get(coordinator.report.remote()), ray.get(runs))
