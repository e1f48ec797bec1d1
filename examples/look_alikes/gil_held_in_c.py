"""A C function that holds the GIL, so that no other thread of its process runs (as in ray#41431).

The actor is asynchronous and should answer `ping` meanwhile. But a C call that does not release the GIL blocks its
event loop and all other threads, until it returns.

Expected: running
Members: driver gil_held_in_c.py
Points at: ctypes.PyDLL(None).sleep(seconds)
Next step: it does not start the call, though it has a free slot
"""

import asyncio
import ctypes
import os
import time
from typing import Any

import ray


class Cruncher:
    async def crunch(self, seconds: int) -> str:
        await asyncio.sleep(0.1)  # until the thread that has handed it to the loop is done with that
        ctypes.PyDLL(None).sleep(seconds)
        return "crunched"

    async def ping(self) -> str:
        return "pong"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cruncher: Any = ray.remote(Cruncher).options(name="cruncher").remote()
    ray.get(cruncher.ping.remote())
    cruncher.crunch.remote(900)
    time.sleep(1.0)  # until it has begun
    answer = cruncher.ping.remote()
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
