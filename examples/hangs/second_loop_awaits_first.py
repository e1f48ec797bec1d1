"""A coroutine that joins a thread, whose event loop awaits a coroutine of the first event loop.

`asyncio.run` fails on a thread whose event loop is running, so `report` starts another thread for it. The join blocks
the event loop on which `figures` would have to run.

Expected: deadlock
Members: Office.report
Behind: driver second_loop_awaits_first.py
Points at: thread.join()
Next step: Await instead of blocking in thread.join in Office.report
"""

import asyncio
import os
import threading
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        return 42

    async def ask(self, loop: asyncio.AbstractEventLoop) -> int:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.figures(), loop))

    async def report(self) -> str:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=lambda: asyncio.run(self.ask(loop)), name="asks")
        thread.start()
        thread.join()
        return "asked"


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
