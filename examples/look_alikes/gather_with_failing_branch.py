"""An async actor that gathers several results, one of which comes too late and another one of which fails.

The northern branch asks the headquarters for their budget, but the only slot of the headquarters is occupied by the
call that gathers. The alarm ends the gathering with an error.

Expected: running
Members: Headquarters.gather, North.figures
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Headquarters:
    async def budget(self) -> int:
        return 1000

    async def alarm(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        raise TimeoutError

    async def gather(self, north: Any) -> int:
        me = ray.get_runtime_context().current_actor
        try:
            return sum(await asyncio.gather(self.alarm(900.0), north.figures.remote(me)))
        except TimeoutError:
            return 0


class North:
    def figures(self, headquarters: Any) -> int:
        budget: int = ray.get(headquarters.budget.remote())
        return budget // 2


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    headquarters: Any = ray.remote(Headquarters).options(name="headquarters", max_concurrency=1).remote()
    north: Any = ray.remote(North).options(name="north", num_cpus=0).remote()
    ray.get([headquarters.__ray_ready__.remote(), north.__ray_ready__.remote()])
    total = headquarters.gather.remote(north)
    print("ready", flush=True)
    print(ray.get(total))


if __name__ == "__main__":
    main()
