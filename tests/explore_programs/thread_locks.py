"""A threaded actor takes two locks in the order of the transfer.

It can hang: opposite transfers that overlap while each asks the auditor take the two locks in opposite orders.
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
        self.balance = {"checking": 10, "savings": 10}

    def transfer(self, source, target):
        with self.locks[source]:
            ray.get(self.auditor.approve.remote())
            with self.locks[target]:
                self.balance[source] -= 1
                self.balance[target] += 1


ray.init(num_cpus=2, include_dashboard=False)
auditor = Auditor.remote()
bank = Bank.remote(auditor)
ray.get(auditor.approve.remote())
first = bank.transfer.remote("checking", "savings")
time.sleep(0.3)
ray.get([first, bank.transfer.remote("savings", "checking")])
print("done")
