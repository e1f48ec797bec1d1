"""More actors than CPUs, each of which keeps a CPU for as long as it lives (as in ray#5468 and ray#1734).

The driver creates one counter too many and calls the last one. That one never starts: the other counters are idle, but
hold the CPUs for as long as the driver holds their handles, and the driver waits.

Expected: deadlock
Members: driver actors_for_life.py, Counter.__init__
Points at: print(ray.get(counters[-1].count.remote()))
Next step: Set num_cpus=0 for actor Counter, or start fewer of them
"""

import os
from typing import Any

import ray


class Counter:
    def count(self) -> int:
        return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cpus = int(ray.cluster_resources()["CPU"])
    counters: list[Any] = [ray.remote(Counter).options(num_cpus=1).remote() for _ in range(cpus + 1)]
    print("ready", flush=True)
    print(ray.get(counters[-1].count.remote()))


if __name__ == "__main__":
    main()
