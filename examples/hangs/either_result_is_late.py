"""A call that waits for either of two results, of which one is its own caller's, and the other queued behind that.

The baker waits for the oven, and the oven for the baker or for the apprentice's call to the baker, whichever is first.
Another call, in a concurrency group of its own, has handed the oven's result to the baker.

Expected: deadlock
Members: Baker.bake, Oven.heat, Baker.assist
Points at: ready, _ = ray.wait(others)
Next step: Raise the threads of the concurrency group of Baker.assist to 2 (now 1)
"""

import os
import queue
from typing import Any

import ray


class Baker:
    def __init__(self) -> None:
        self.ovens: queue.Queue[Any] = queue.Queue()

    def hear(self, ovens: list[Any]) -> None:
        self.ovens.put(ovens[0])

    def bake(self) -> str:
        oven: str = ray.get(self.ovens.get())
        return f"bread of the {oven} oven"

    def assist(self) -> str:
        return "flour"


class Oven:
    def heat(self, others: list[Any]) -> str:
        ready, _ = ray.wait(others)
        return "hot" if ready else "cold"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    groups = {"talk": 1, "work": 1}
    baker: Any = ray.remote(concurrency_groups=groups)(Baker).options(name="baker").remote()
    oven: Any = ray.remote(Oven).options(name="oven").remote()
    ray.get([baker.__ray_ready__.remote(), oven.__ray_ready__.remote()])
    bread = baker.bake.options(concurrency_group="work").remote()
    flour = baker.assist.options(concurrency_group="work").remote()
    heated = oven.heat.remote([bread, flour])
    ray.get(baker.hear.options(concurrency_group="talk").remote([heated]))
    print("ready", flush=True)
    print(ray.get(bread))


if __name__ == "__main__":
    main()
