"""A driver with an event loop of its own that awaits two actors, which wait for each other.

Expected: deadlock
Members: Clerk.apply, Manager.decide
Points at: print(await decision)
Next step: Raise max_concurrency of Clerk to 2 (now 1)
"""

import asyncio
import os
from typing import Any

import ray


class Clerk:
    def file(self) -> str:
        return "file"

    def apply(self, manager: Any) -> str:
        me = ray.get_runtime_context().current_actor
        decision: str = ray.get(manager.decide.remote(me))
        return decision


class Manager:
    def decide(self, clerk: Any) -> str:
        file: str = ray.get(clerk.file.remote())
        return f"granted after reading the {file}"


async def work() -> None:
    clerk: Any = ray.remote(Clerk).options(name="clerk").remote()
    manager: Any = ray.remote(Manager).options(name="manager").remote()
    await asyncio.gather(clerk.__ray_ready__.remote(), manager.__ray_ready__.remote())
    decision = clerk.apply.remote(manager)
    print("ready", flush=True)
    print(await decision)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    asyncio.run(work())


if __name__ == "__main__":
    main()
