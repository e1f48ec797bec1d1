"""A producer that waits for its consumer, which waits for what the producer holds (as in ray#46319).

The stream may run two items ahead, then its producer waits until one is taken. The driver first waits for a total, from
a task that needs the GPU, which the producer holds.

Expected: deadlock
Members: driver backpressure.py, decode, total
Points at: print(ray.get(total.remote()))
Next step: Add 1 GPU
"""

import os
from collections.abc import Iterator

import ray


@ray.remote(num_gpus=1, num_returns="streaming", _generator_backpressure_num_objects=2)
def decode() -> Iterator[int]:
    for frame in range(100):
        yield frame * frame


@ray.remote(num_gpus=1)
def total() -> int:
    return sum(range(100))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    video = decode.remote()
    ray.get(next(video))
    print("ready", flush=True)
    print(ray.get(total.remote()))
    print(sum(1 for _ in video))


if __name__ == "__main__":
    main()
