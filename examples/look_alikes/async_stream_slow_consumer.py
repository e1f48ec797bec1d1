"""An async generator that waits for its consumer, which is slow with each item.

Unlike in the hang, the consumer works, and then takes the next item.

Expected: running
Points at: time.sleep(1000)
"""

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import ray


class Decoder:
    async def frames(self) -> AsyncIterator[int]:
        for frame in range(100):
            yield frame * frame

    async def close(self) -> bool:
        return True


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    decoder: Any = ray.remote(Decoder).options(name="decoder", max_concurrency=1).remote()
    ray.get(decoder.__ray_ready__.remote())
    frames = decoder.frames.options(num_returns="streaming", _generator_backpressure_num_objects=2).remote()
    closed = decoder.close.remote()
    print("ready", flush=True)
    for frame in frames:
        print(ray.get(frame))
        time.sleep(1000)
    print(ray.get(closed))


if __name__ == "__main__":
    main()
