"""An async actor that calls itself and awaits the result.

With `ray.get` it would never end. `await` leaves the event loop free, and the second call is only slow.

Expected: running
Members: driver awaited_own_method.py, Office.report
Points at: await asyncio.sleep(seconds)
"""

import asyncio
import os
from typing import Any

import ray


class Office:
    async def figures(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return 42

    async def report(self, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        return f"the figures are {await me.figures.remote(seconds)}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    office: Any = ray.remote(Office).options(name="office").remote()
    ray.get(office.__ray_ready__.remote())
    report = office.report.remote(900.0)
    print("ready", flush=True)
    print(ray.get(report))


if __name__ == "__main__":
    main()
