"""A group of asyncio tasks in an async actor, one of which is slow.

The others have ended; the method waits for the last one at the end of its `async with` block.

Expected: running
Members: Surveyor.survey
Points at: time.sleep(seconds)
"""

import asyncio
import os
import sys
import time
from typing import Any

import ray


class Surveyor:
    async def measure(self, site: Any, seconds: float) -> float:
        return float(await site.height.remote(seconds))

    async def survey(self, near: Any, far: Any) -> float:
        work = (self.measure(near, 0.0), self.measure(far, 900.0))
        if sys.version_info >= (3, 11):
            async with asyncio.TaskGroup() as group:
                heights = [group.create_task(one) for one in work]
            return sum(height.result() for height in heights)
        return sum(await asyncio.gather(*work))


class Site:
    def height(self, seconds: float) -> float:
        time.sleep(seconds)
        return 12.5


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    surveyor: Any = ray.remote(Surveyor).options(name="surveyor").remote()
    near: Any = ray.remote(Site).options(name="near", num_cpus=0).remote()
    far: Any = ray.remote(Site).options(name="far", num_cpus=0).remote()
    ray.get([one.__ray_ready__.remote() for one in (surveyor, near, far)])
    heights = surveyor.survey.remote(near, far)
    print("ready", flush=True)
    print(ray.get(heights))


if __name__ == "__main__":
    main()
