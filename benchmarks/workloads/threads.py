"""Thread pools, locks, conditions, queues and joins in a driver and in actors, with ray.get among them."""

import contextlib
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.exceptions import RayError

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.RLock()
        self.pool = ThreadPoolExecutor(2)

    def add(self, number: int) -> int:
        with self.lock:
            return self._add(number)

    def _add(self, number: int) -> int:
        with self.lock:
            self.count += number
            return self.count

    def add_all(self, numbers: list[int]) -> int:
        list(self.pool.map(self.add, numbers))
        return self.count


def fill(counter: Any, work: "queue.Queue[int | None]", lock: threading.Lock) -> None:
    while (number := work.get()) is not None:
        with lock, contextlib.suppress(RayError):
            ray.get(counter.add.remote(number))
        time.sleep(random.uniform(0, 0.1))


def join_fillers(counter: Any) -> None:
    work: queue.Queue[int | None] = queue.Queue(2)
    lock = threading.Lock()
    fillers = [threading.Thread(target=fill, args=(counter, work, lock)) for _ in range(3)]
    for filler in fillers:
        filler.start()
    for number in range(30):
        work.put(number)
    for _ in fillers:
        work.put(None)
    for filler in fillers:
        filler.join()


def announce(condition: threading.Condition, rounds: list[int]) -> None:
    while True:
        time.sleep(0.1)
        with condition:
            rounds.append(len(rounds))
            condition.notify_all()


def count(counters: list[Any], pool: ThreadPoolExecutor, condition: threading.Condition) -> None:
    for counter in counters:
        join_fillers(counter)
    totals = [pool.submit(ray.get, counter.add_all.remote([1, 2, 3])) for counter in counters]
    assert all(total.result() for total in totals)
    with condition:
        condition.wait()


def main() -> None:
    ray.init()
    condition, rounds = threading.Condition(), [0]
    threading.Thread(target=announce, args=(condition, rounds), daemon=True).start()
    with ThreadPoolExecutor(4) as pool:
        play_for_ever(lambda: [Counter.remote() for _ in range(2)], lambda counters: count(counters, pool, condition))


if __name__ == "__main__":
    main()
