"""A coroutine that blocks its event loop until a slow thread sets a future.

Unlike in the hang, a thread sets the future, and needs no event loop.

Expected: running
Points at: time.sleep(1000)
"""

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import ray


class Office:
    def count(self, future: Future[int]) -> None:
        time.sleep(1000)
        future.set_result(42)

    async def report(self) -> int:
        future: Future[int] = Future()
        threading.Thread(target=self.count, args=(future,), daemon=True).start()
        await asyncio.sleep(0)
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
