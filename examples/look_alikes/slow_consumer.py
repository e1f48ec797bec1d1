"""A producer under backpressure, whose consumer is slow.

The stream may run two items ahead. The producer has made them and waits until the driver takes one; the driver still
works on the first.

Expected: running
Members: decode
Points at: time.sleep(seconds)
"""

import os
import time
from collections.abc import Iterator

import ray


@ray.remote(num_returns="streaming", _generator_backpressure_num_objects=2)
def decode() -> Iterator[int]:
    for frame in range(10):
        yield frame * frame


def show(frame: int, seconds: float) -> None:
    time.sleep(seconds)
    print(frame)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    video = decode.remote()
    first = ray.get(next(video))
    print("ready", flush=True)
    show(first, 900.0)
    print(sum(1 for _ in video))


if __name__ == "__main__":
    main()
