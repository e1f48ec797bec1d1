"""A coroutine submitted to the event loop from the loop's own thread, which then waits for its result.

`run_coroutine_threadsafe` is for other threads. Here `result()` blocks the only thread that could run the coroutine.

Expected: deadlock
Members: Office.report
Behind: driver result_on_own_loop.py
Points at: return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()
Next step: Await instead of blocking in Future.result in Office.report
"""

import asyncio
import os
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        return 42

    async def report(self) -> int:
        loop = asyncio.get_running_loop()
        return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()


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
