"""Two async actors with one slot each that await each other, one of them inside of a cancel scope of anyio.

Without the scope this is a deadlock. With it the deadline cancels the call, and the actor goes on. HTTP clients and
servers limit their requests in this way.

Expected: running (finding: polling)
Members: Parrot.answer
Points at: name = await other.name.remote()
"""

import os
from typing import Any

import anyio
import ray


class Parrot:
    async def greet(self, other: Any) -> str:
        me = ray.get_runtime_context().current_actor
        return "hello " + await other.answer.remote(me)

    async def answer(self, other: Any) -> str:
        name = "silence"
        with anyio.move_on_after(900.0):
            name = await other.name.remote()
        return f"{name}!"

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
