"""A coroutine on another event loop, in a thread of its own, which is only slow.

Unlike in the hang, the event loop is another one: it runs while the actor's own event loop is blocked.

Expected: running
Points at: await asyncio.sleep(1000)
"""

import asyncio
import os
import threading
from typing import Any

import ray


class Office:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def figures(self) -> int:
        await asyncio.sleep(1000)
        return 42

    def report(self) -> int:
        return asyncio.run_coroutine_threadsafe(self.figures(), self.loop).result()


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
