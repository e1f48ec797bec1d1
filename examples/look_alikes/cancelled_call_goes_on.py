"""A cancelled method of an async actor that catches its cancellation and continues, in the actor's only slot.

`ray.cancel` raises `asyncio.CancelledError` in it, once; this loop catches it like any other error. The next call is
queued behind the loop, which sleeps and works. So no call is stuck for ever.

Expected: running
Members: driver cancelled_call_goes_on.py, Watch.status
Points at: await asyncio.sleep(0.5)
Next step: To let the cancelled call end, do not catch asyncio.CancelledError, or raise it again
"""

import asyncio
import os
import time
from typing import Any

import ray


class Watch:
    def __init__(self) -> None:
        self.failures = 0

    async def follow(self) -> None:
        while True:
            try:
                await asyncio.sleep(0.5)
            except BaseException:
                self.failures += 1

    async def status(self) -> int:
        return self.failures


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    watch: Any = ray.remote(Watch).options(name="watch", max_concurrency=1).remote()
    ray.get(watch.__ray_ready__.remote())
    following = watch.follow.remote()
    time.sleep(1)  # to let it begin
    ray.cancel(following)
    status = watch.status.remote()
    print("ready", flush=True)
    print(ray.get(status))


if __name__ == "__main__":
    main()
