"""An async generator that waits for its consumer, which waits for another method of the same actor.

The stream may run two items ahead, then its producer waits until one is taken. The actor runs one call at a time, so
`close` is queued behind the stream, which the driver does not read.

Expected: deadlock
Members: driver async_backpressure.py, Decoder.frames, Decoder.close
Points at: print(ray.get(decoder.close.remote()))
Next step: Raise max_concurrency of Decoder to 2 (now 1)
"""

import os
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
    print(ray.get(next(frames)))
    print("ready", flush=True)
    print(ray.get(decoder.close.remote()))
    print(sum(1 for _ in frames))


if __name__ == "__main__":
    main()
