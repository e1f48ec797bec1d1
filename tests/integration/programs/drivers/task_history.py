"""A driver whose tasks have called others, waited in queues, failed and ended, and that waits for one that runs."""

import os
import time
from typing import Any

import ray

BYTES = 300_000


@ray.remote(num_cpus=0)
def load(item: int) -> Any:
    time.sleep(0.05)
    return bytes(BYTES)


@ray.remote(num_cpus=0)
def outer(item: int) -> int:
    return len(ray.get(load.remote(item)))


@ray.remote(num_cpus=0, max_retries=0)
def fail() -> None:
    raise ValueError("no such batch\nnot even a part")


class Worker:
    def step(self, data: Any) -> int:
        time.sleep(0.2)
        return len(data)

    def hang(self) -> None:
        time.sleep(900.0)


@ray.remote(resources={"nowhere": 1})
def never_placed() -> None:
    pass


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    with_dashboard = "RAY_enable_task_events_to_dashboard_head" in os.environ
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=with_dashboard)
    worker: Any = ray.remote(num_cpus=0)(Worker).remote()
    held = load.remote(0)
    ray.get([outer.remote(1), worker.step.remote(held), worker.step.remote(held)])
    ray.wait([failed := fail.remote()])
    waits = [never_placed.remote(), worker.hang.remote(), worker.step.remote(held), failed, held]
    print("ready", flush=True)
    ray.get(waits[1])


if __name__ == "__main__":
    main()
