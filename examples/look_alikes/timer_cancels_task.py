"""Two async actors with one slot each that await each other, until a timer of an event loop cancels one of them.

Without the timer this is a deadlock.

Expected: running (finding: polling)
Members: Parrot.answer
Points at: name = await task
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
        task = asyncio.ensure_future(self.ask(other))
        asyncio.get_running_loop().call_later(900.0, task.cancel)
        try:
            name = await task
        except asyncio.CancelledError:
            name = "silence"
        return name

    async def ask(self, other: Any) -> str:
        return str(await other.name.remote())

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
