"""ray.util.queue: a narrow queue between two producers and two consumers, and one that is empty most of the time.

A retried task would wait for items that were taken before, so none is retried; the queues end with a failed round.
"""

import random
import time
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.queue import Empty, Queue

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_retries=0)
def produce(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.put(number)
        time.sleep(random.uniform(0, 0.04))


@ray.remote(num_cpus=0, max_retries=0)
def consume(queue: Queue, count: int) -> int:
    total = 0
    for _ in range(count):
        total += queue.get()
        time.sleep(random.uniform(0, 0.06))
    return total


@ray.remote(num_cpus=0, max_retries=0)
def poll(queue: Queue) -> int:
    while True:
        try:
            return int(queue.get(timeout=0.2))
        except Empty:
            continue


Queues = tuple[Queue, Queue]


def narrow_and_quiet() -> Queues:
    queues = Queue(maxsize=2), Queue()
    queues[0].put(0)
    queues[0].get()
    return queues


def produce_and_consume(queues: Queues) -> None:
    try:
        pass_items(*queues)
    except RayError:
        for queue in queues:
            queue.shutdown(force=True)  # ends the tasks that wait
        raise


def pass_items(narrow: Queue, quiet: Queue) -> None:
    poller = poll.remote(quiet)
    for _ in range(3):
        producers = [produce.remote(narrow, 20) for _ in range(2)]
        consumers = [consume.remote(narrow, 20) for _ in range(2)]
        wait_for_all([*producers, *consumers])
        assert sum(ray.get(consumers)) == 380
    quiet.put(1)
    ray.get(poller)


def wait_for_all(calls: list[Any]) -> None:
    """Raise the error of the first call that fails: the others wait for its items."""
    while calls:
        (done,), calls = ray.wait(calls)
        ray.get(done)


def main() -> None:
    ray.init()
    play_for_ever(narrow_and_quiet, produce_and_consume)


if __name__ == "__main__":
    main()
