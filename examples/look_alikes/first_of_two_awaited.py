"""An async actor that waits for the first of two results, one of which never becomes available.

The neighbour asks back for a name, but the only slot of the actor is occupied. The stranger, which was asked too, is
only slow, and one result is enough.

Expected: running
Members: Traveller.ask
Points at: done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
"""

import asyncio
import os
import time
from typing import Any

import ray


class Traveller:
    async def name(self) -> str:
        return "traveller"

    async def ask(self, neighbour: Any, stranger: Any) -> str:
        me = ray.get_runtime_context().current_actor
        refs = [neighbour.way.remote(me), stranger.way.remote(900.0)]
        asked = [asyncio.wrap_future(ref.future()) for ref in refs]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        return str(done.pop().result())


class Neighbour:
    def way(self, traveller: Any) -> str:
        name: str = ray.get(traveller.name.remote())
        return f"this way, {name}"


class Stranger:
    def way(self, seconds: float) -> str:
        time.sleep(seconds)
        return "that way"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    traveller: Any = ray.remote(Traveller).options(name="traveller", max_concurrency=1).remote()
    neighbour: Any = ray.remote(Neighbour).options(name="neighbour", num_cpus=0).remote()
    stranger: Any = ray.remote(Stranger).options(name="stranger", num_cpus=0).remote()
    ray.get([one.__ray_ready__.remote() for one in (traveller, neighbour, stranger)])
    way = traveller.ask.remote(neighbour, stranger)
    print("ready", flush=True)
    print(ray.get(way))


if __name__ == "__main__":
    main()
