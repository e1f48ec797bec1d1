"""Two async actors with one slot each that await each other.

An async actor can answer while it awaits, if it may run more than one call at a time. These two may not.

Expected: deadlock
Members: Parrot.greet, Parrot.answer, Parrot.name
Behind: driver async_slots_full.py
Points at: return str(await other.name.remote())
Next step: Raise max_concurrency of Parrot to 2 (now 1)
"""

import os
from typing import Any

import ray


class Parrot:
    async def greet(self, other: Any) -> str:
        me = ray.get_runtime_context().current_actor
        return "hello " + await other.answer.remote(me)

    async def answer(self, other: Any) -> str:
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
