"""A stream whose producer stops in the middle (as in ray#62535).

Two items arrive, and the driver waits for the third. The producer waits for the approval of the second item, from a
task that asks for a resource that no node has.

Expected: hang (finding: infeasible)
Members: approve
Points at: for item in stream:
Next step: Reduce what approve asks for
"""

import os
from collections.abc import Iterator

import ray


@ray.remote(resources={"stamp": 1})
def approve(item: int) -> bool:
    return item > 0


@ray.remote(num_returns="streaming")
def produce() -> Iterator[int]:
    yield 1
    yield 2
    if ray.get(approve.remote(2)):
        yield 3


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    stream = produce.remote()
    print(ray.get(next(stream)), ray.get(next(stream)))
    print("ready", flush=True)
    for item in stream:
        print(ray.get(item))


if __name__ == "__main__":
    main()
