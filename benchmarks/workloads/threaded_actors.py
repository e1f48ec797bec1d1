"""Threaded actors and concurrency groups: calls of an actor's own methods from inside, with a slot left for them."""

import random
import threading
import time
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_concurrency=4, max_restarts=-1, max_task_retries=-1)
class Desk:
    def __init__(self) -> None:
        self.stamps = threading.Lock()

    def handle(self, me: Any, form: int) -> int:
        return int(ray.get(me.stamp.remote(form)))

    def stamp(self, form: int) -> int:
        with self.stamps:
            time.sleep(random.uniform(0, 0.1))
        return form


@ray.remote(num_cpus=0, concurrency_groups={"io": 2, "compute": 1}, max_restarts=-1, max_task_retries=-1)
class Store:
    @ray.method(concurrency_group="io")
    def load(self, me: Any, item: int) -> int:
        return int(ray.get(me.compute.remote(item)))

    @ray.method(concurrency_group="compute")
    def compute(self, item: int) -> int:
        time.sleep(0.05)
        return item


def office() -> tuple[Any, Any]:
    desk, store = Desk.remote(), Store.remote()
    ray.get([desk.handle.remote(desk, 0), store.load.remote(store, 0)])
    return desk, store


def handle_and_load(actors: tuple[Any, Any]) -> None:
    desk, store = actors
    forms = [desk.handle.remote(desk, form) for form in range(2)]  # as many more are left to stamp them
    items = [store.load.remote(store, item) for item in range(8)]
    assert sum(ray.get(forms + items)) == 1 + 28


def main() -> None:
    ray.init()
    play_for_ever(office, handle_and_load)


if __name__ == "__main__":
    main()
