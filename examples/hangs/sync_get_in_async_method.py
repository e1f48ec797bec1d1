"""A `ray.get` inside a method of an async actor (as in ray#7197 and ray#44454).

An async actor runs many calls at a time, so `report` asks its own actor for the figures. But `ray.get` does not await:
it blocks the thread of the event loop, which would have to run `figures`.

Expected: deadlock
Members: Office.report, Office.figures
Behind: driver sync_get_in_async_method.py
Points at: figures: int = ray.get(me.figures.remote())
Next step: Await the ObjectRef instead of ray.get in Office.report, which blocks its event loop
"""

import os
from typing import Any

import ray


class Office:
    async def figures(self) -> int:
        return 42

    async def report(self) -> str:
        me = ray.get_runtime_context().current_actor
        figures: int = ray.get(me.figures.remote())
        return f"the figures are {figures}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    office: Any = ray.remote(Office).options(name="office").remote()
    ray.get(office.figures.remote())
    report = office.report.remote()
    print("ready", flush=True)
    print(ray.get(report))


if __name__ == "__main__":
    main()
