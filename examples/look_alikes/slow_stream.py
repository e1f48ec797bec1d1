"""A stream whose producer is slow.

Two items have arrived; the producer is making the third.

Expected: running
Members: driver slow_stream.py
Points at: time.sleep(seconds)
"""

import os
import time
from collections.abc import Iterator

import ray


@ray.remote(num_returns="streaming")
def produce(seconds: float) -> Iterator[int]:
    yield 1
    yield 2
    time.sleep(seconds)
    yield 3


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    stream = produce.remote(900.0)
    print(ray.get(next(stream)), ray.get(next(stream)))
    print("ready", flush=True)
    for item in stream:
        print(ray.get(item))


if __name__ == "__main__":
    main()
