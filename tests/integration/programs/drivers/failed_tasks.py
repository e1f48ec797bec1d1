"""A driver that polls an actor while another thread works with it, beside tasks and actors that failed."""

import os
import threading
import time
from typing import Any

import ray


class Buffer:
    def __init__(self) -> None:
        self.attempts = 0

    def size(self) -> int:
        return 0

    def fill(self) -> None:
        time.sleep(0.3)

    def attempt(self) -> int:
        self.attempts += 1
        return self.attempts


class Worker:
    def fail(self, batch: int) -> None:
        self.load(batch)

    def load(self, batch: int) -> None:
        raise RuntimeError(f"no batch {batch}\nnot even a part of it")

    def end(self) -> None:
        os._exit(3)


@ray.remote(num_cpus=0, max_retries=1, retry_exceptions=True)
def retried(buffer: Any) -> None:
    if ray.get(buffer.attempt.remote()) == 1:
        raise ValueError("the first attempt")
    time.sleep(900.0)


def fill(buffer: Any) -> None:
    while True:
        ray.get(buffer.fill.remote())


def handle(failed: Any) -> None:
    try:
        ray.get(failed)
    except ray.exceptions.RayError as error:
        print(type(error).__name__)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    buffer: Any = ray.remote(num_cpus=0, max_concurrency=4)(Buffer).remote()
    worker, mortal, released = (ray.remote(num_cpus=0)(Worker).remote() for _ in range(3))
    held = [worker.fail.remote(7), retried.remote(buffer)]
    handle(worker.fail.remote(8))
    handle(mortal.end.remote())
    ray.get(released.__ray_ready__.remote())
    del released
    threading.Thread(target=fill, args=(buffer,), name="fill", daemon=True).start()
    print("ready", flush=True)
    while ray.get(buffer.size.remote()) < len(held):
        time.sleep(0.2)


if __name__ == "__main__":
    main()
