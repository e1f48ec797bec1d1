"""An async actor whose calls are all sleeping.

All threads of its process are idle: sleeping coroutines are on no stack. They will wake up.

Expected: running
Members: driver sleeping_coroutines.py
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Dormitory:
    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    dormitory: Any = ray.remote(Dormitory).options(name="dormitory").remote()
    ray.get(dormitory.__ray_ready__.remote())
    naps = [dormitory.nap.remote(900.0) for _ in range(8)]
    print("ready", flush=True)
    print(ray.get(naps))


if __name__ == "__main__":
    main()
