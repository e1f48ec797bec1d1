"""Two calls that run, and wait for each other's results.

Each poet begins a poem before it knows of the other one, which is then handed to it by another call.

Expected: deadlock
Members: Poet.write
Points at: return f"{self.line}, {ray.get(other)}"
Next step: Return the ObjectRef instead of ray.get in Poet.write
"""

import os
import queue
from typing import Any

import ray


class Poet:
    def __init__(self, line: str) -> None:
        self.line = line
        self.others: queue.Queue[Any] = queue.Queue()

    def hear(self, others: list[Any]) -> None:
        self.others.put(others[0])

    def write(self) -> str:
        other = self.others.get()
        return f"{self.line}, {ray.get(other)}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first, second = (ray.remote(Poet).options(name=name, max_concurrency=2).remote(name) for name in ("rose", "thorn"))
    poems = [first.write.remote(), second.write.remote()]
    ray.get([first.hear.remote(poems[1:]), second.hear.remote(poems[:1])])
    print("ready", flush=True)
    print(ray.get(poems))


if __name__ == "__main__":
    main()
