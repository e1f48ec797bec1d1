"""A method that hands several coroutines to the event loop it runs on, and waits for all of their futures.

`concurrent.futures.wait` blocks the thread of the event loop, so none of the coroutines starts.

Expected: deadlock
Members: Office.report
Behind: driver futures_of_own_loop.py
Points at: done, _ = wait(futures)
Next step: Await instead of blocking in concurrent.futures.wait in Office.report
"""

import asyncio
import os
from concurrent.futures import wait
from typing import Any

import ray


class Office:
    async def figures(self, month: int) -> int:
        return 42 * month

    def report(self) -> int:
        loop = asyncio.get_event_loop()
        futures = [asyncio.run_coroutine_threadsafe(self.figures(month), loop) for month in range(3)]
        done, _ = wait(futures)
        return sum(future.result() for future in done)


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
