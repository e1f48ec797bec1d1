"""A thread that waits for a coroutine on the actor's event loop, which continues to run.

Unlike in the hang, `report` awaits, so it does not block the event loop while the thread waits.

Expected: running
Points at: await asyncio.sleep(1000)
"""

import asyncio
import os
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        await asyncio.sleep(1000)
        return 42

    def ask(self, loop: asyncio.AbstractEventLoop) -> int:
        return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()

    async def report(self) -> int:
        return await asyncio.to_thread(self.ask, asyncio.get_running_loop())


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
