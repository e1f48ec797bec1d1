"""A sync method of an async actor, which waits for a coroutine on the actor's event loop.

Ray runs all methods of an actor with an async method on its event loop, sync ones too. So `report` blocks the only
thread that could run `figures`.

Expected: deadlock
Members: Office.report
Behind: driver sync_method_on_loop.py
Points at: return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()
Next step: Await instead of blocking in Future.result in Office.report
"""

import asyncio
import os
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        await asyncio.sleep(0.1)
        return 42

    def total(self) -> int:
        loop = asyncio.get_event_loop()
        return asyncio.run_coroutine_threadsafe(self.figures(), loop).result()

    def report(self) -> str:
        return f"the figures are {self.total()}"


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
