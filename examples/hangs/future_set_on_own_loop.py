"""A coroutine that waits for a thread's future, which another coroutine of the same event loop would set.

`Future.result` of `concurrent.futures` blocks the thread of the event loop, so `count` never starts.

Expected: deadlock
Members: Office.report, driver future_set_on_own_loop.py
Points at: return future.result()
Next step: Await instead of blocking in Future.result in Office.report
"""

import asyncio
import os
from concurrent.futures import Future
from typing import Any

import ray


class Office:
    async def count(self, future: Future[int]) -> None:
        await asyncio.sleep(0.1)
        future.set_result(42)

    async def report(self) -> int:
        future: Future[int] = Future()
        counting = asyncio.create_task(self.count(future), name="count")
        print("counting:", not counting.done())
        return future.result()


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
