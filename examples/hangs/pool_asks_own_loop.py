"""A coroutine that waits for a thread, which waits for another coroutine of the same event loop.

A separate thread may wait for a coroutine. But `report` blocks the event loop until that thread has ended.

Expected: deadlock
Members: Office.report
Behind: driver pool_asks_own_loop.py
Points at: return pool.submit(self.ask, loop).result()
Next step: Do not wait for thread "ThreadPoolExecutor-0_0" in Office.report
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        return 42

    def ask(self, loop: asyncio.AbstractEventLoop) -> int:
        return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()

    async def report(self) -> int:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(self.ask, loop).result()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    office: Any = ray.remote(Office).options(name="office").remote()
    ray.get(office.__ray_ready__.remote())
    report = office.report.remote()
    print("ready", flush=True)
    print(ray.get(report))


if __name__ == "__main__":
    main()
