"""A coroutine that waits for a `threading.Event`, which another coroutine of the same event loop would set.

A `threading.Event` blocks the thread of the event loop. With an `asyncio.Event`, `count` could run.

Expected: deadlock
Members: Office.report, driver event_set_on_own_loop.py
Points at: self.counted.wait()
Next step: Await instead of blocking in threading.Event.wait in Office.report
"""

import asyncio
import os
import threading
from typing import Any

import ray


class Office:
    def __init__(self) -> None:
        self.counted = threading.Event()

    async def count(self) -> None:
        await asyncio.sleep(0.1)
        self.counted.set()

    async def report(self) -> bool:
        counting = asyncio.create_task(self.count(), name="count")
        self.counted.wait()
        return counting.done()


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
