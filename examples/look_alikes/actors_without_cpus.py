"""More actors than CPUs, all alive, since they hold no CPU while they live.

Five readers on two CPUs wait for one task, which has a CPU.

Expected: running
Members: driver actors_without_cpus.py, Reader.read
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


@ray.remote
def load(seconds: float) -> str:
    time.sleep(seconds)
    return "book"


class Reader:
    def read(self, book: "list[ray.ObjectRef[str]]") -> str:
        return ray.get(book[0])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    readers: list[Any] = [ray.remote(Reader).options(num_cpus=0).remote() for _ in range(5)]
    ray.get([reader.__ray_ready__.remote() for reader in readers])
    book = load.remote(900.0)
    read = [reader.read.remote([book]) for reader in readers]
    print("ready", flush=True)
    print(ray.get(read))


if __name__ == "__main__":
    main()
