"""A threaded queue actor has two slots, and a queue without a bound: a put() never waits.

It cannot hang: at most one get() waits at a time, so a slot is left for put().
"""

import queue
import time

import ray


@ray.remote(max_concurrency=2)
class Mailbox:
    def __init__(self):
        self.mails = queue.Queue()

    def put(self, mail):
        self.mails.put(mail)

    def get(self):
        return self.mails.get()


@ray.remote(num_cpus=0)
def send(mailbox, begin):
    for mail in range(begin, begin + 3):
        ray.get(mailbox.put.remote(mail))
        time.sleep(0.1)


@ray.remote(num_cpus=0)
def receive(mailbox):
    return [ray.get(mailbox.get.remote()) for _ in range(6)]


ray.init(num_cpus=2, include_dashboard=False)
mailbox = Mailbox.remote()
received = receive.remote(mailbox)
print(ray.get([send.remote(mailbox, begin) for begin in (0, 10)]), ray.get(received))
