"""A driver that is rank 0 itself and waits for rank 1, whose call raised: rank_zero.py held|dropped|fetched"""

import os
import sys
import threading
from typing import Any

import ray


class Rank:
    def execute(self, size: int) -> int:
        return self.allocate(size)

    def allocate(self, size: int) -> int:
        raise MemoryError(f"no room for {size} blocks")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rank: Any = ray.remote(Rank).remote()
    executed = rank.execute.remote(9000)
    ray.wait([executed])
    if sys.argv[1] == "dropped":
        del executed
    if sys.argv[1] == "fetched":
        try:
            ray.get(executed)
        except MemoryError:
            del executed
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
