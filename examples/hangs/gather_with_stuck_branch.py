"""An async actor that gathers several results, one of which never becomes available.

The branches are called at the same time. The southern one is only slow. The northern one asks the headquarters for
their budget, but the only slot of the headquarters is occupied by the call that gathers.

Expected: deadlock
Members: Headquarters.gather, North.figures
Behind: driver gather_with_stuck_branch.py
Points at: budget: int = ray.get(headquarters.budget.remote())
Next step: Raise max_concurrency of Headquarters to 2 (now 1)
"""

import asyncio
import os
import time
from typing import Any

import ray


class Headquarters:
    async def budget(self) -> int:
        return 1000

    async def gather(self, north: Any, south: Any) -> int:
        me = ray.get_runtime_context().current_actor
        return sum(await asyncio.gather(south.figures.remote(900.0), north.figures.remote(me)))


class South:
    def figures(self, seconds: float) -> int:
        time.sleep(seconds)
        return 42


class North:
    def figures(self, headquarters: Any) -> int:
        budget: int = ray.get(headquarters.budget.remote())
        return budget // 2


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    headquarters: Any = ray.remote(Headquarters).options(name="headquarters", max_concurrency=1).remote()
    north: Any = ray.remote(North).options(name="north", num_cpus=0).remote()
    south: Any = ray.remote(South).options(name="south", num_cpus=0).remote()
    ray.get([one.__ray_ready__.remote() for one in (headquarters, north, south)])
    total = headquarters.gather.remote(north, south)
    print("ready", flush=True)
    print(ray.get(total))


if __name__ == "__main__":
    main()
