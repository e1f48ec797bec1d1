"""Two async actors with one slot each that await each other, one of them with a timeout.

Without the timeout this is a deadlock. With it the first one stops waiting at some time, and all calls proceed.

Expected: running (finding: polling)
Members: Parrot.answer
Points at: name = await asyncio.wait_for(other.name.remote(), 900.0)
"""

import asyncio
import os
from typing import Any

import ray


class Parrot:
    async def greet(self, other: Any) -> str:
        me = ray.get_runtime_context().current_actor
        return "hello " + await other.answer.remote(me)

    async def answer(self, other: Any) -> str:
        name = await asyncio.wait_for(other.name.remote(), 900.0)
        return str(name)

    async def name(self) -> str:
        return "parrot"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first: Any = ray.remote(Parrot).options(name="first", max_concurrency=1).remote()
    second: Any = ray.remote(Parrot).options(name="second", max_concurrency=1).remote()
    ray.get([first.name.remote(), second.name.remote()])
    greeting = first.greet.remote(second)
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
