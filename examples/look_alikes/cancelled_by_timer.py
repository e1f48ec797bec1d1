"""Two async actors with one slot each that await each other, until a timer of the driver cancels the call.

Without the timer this is a deadlock.

Expected: running (finding: polling)
Members: Parrot.answer, Parrot.greet
Points at: return str(await other.name.remote())
Next step: thread "cancels" of driver cancelled_by_timer.py is a timer that calls cancel in at most
"""

import os
import threading
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
    timer = threading.Timer(900.0, ray.cancel, [greeting])
    timer.name = "cancels"
    timer.daemon = True
    timer.start()
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
