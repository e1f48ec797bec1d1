"""A C function holds the GIL while Ray delivers a value to the same process, so that its core worker does not answer.

The actor asks for a `concurrent.futures.Future` of a ref. Ray's own thread sets it, for which it needs the GIL. Until
the C function returns, that thread serves no requests either. The memory of the process still shows what it does.

Expected: running, incomplete
Later: running, once the core worker answers
Members: driver gil_held_without_answer.py
Points at: ctypes.PyDLL(None).sleep(seconds)
"""

import ctypes
import os
import time
from typing import Any

import ray


def square(value: int) -> int:
    time.sleep(1.0)  # until the GIL is held
    return value * value


class Cruncher:
    def crunch(self, seconds: int) -> int:
        squarer: Any = ray.remote(num_cpus=0)(square)
        result = squarer.remote(4).future()
        ctypes.PyDLL(None).sleep(seconds)
        return int(result.result())

    def ping(self) -> str:
        return "pong"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cruncher: Any = ray.remote(Cruncher).options(name="cruncher").remote()
    ray.get(cruncher.ping.remote())
    cruncher.crunch.remote(900)
    time.sleep(8.0)  # until the value is there
    answer = cruncher.ping.remote()
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
