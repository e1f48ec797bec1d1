"""A threaded actor takes two locks, always in alphabetical order.

It cannot hang: with one order of locks for all transfers, none of them can hold what another one needs first.
"""

import threading
import time

import ray


@ray.remote
class Auditor:
    def approve(self):
        return True


@ray.remote(max_concurrency=2)
class Bank:
    def __init__(self, auditor):
        self.auditor = auditor
        self.locks = {"checking": threading.Lock(), "savings": threading.Lock()}

    def transfer(self, source, target):
        first, second = sorted((source, target))
        with self.locks[first]:
            ray.get(self.auditor.approve.remote())
            with self.locks[second]:
                return source


ray.init(num_cpus=2, include_dashboard=False)
auditor = Auditor.remote()
bank = Bank.remote(auditor)
ray.get(auditor.approve.remote())
first = bank.transfer.remote("checking", "savings")
time.sleep(0.3)
print(ray.get([first, bank.transfer.remote("savings", "checking")]))
