"""A driver that retries calls beyond an actor's `max_pending_calls`, which the actor works off slowly.

Expected: running
"""

import os
import time
from typing import Any

import ray
from ray.exceptions import PendingCallsLimitExceeded


class Writer:
    def write(self, part: int) -> int:
        time.sleep(1.0)
        return part


def send(writer: Any, part: int) -> Any:
    while True:
        try:
            return writer.write.remote(part)
        except PendingCallsLimitExceeded:
            print("the writer is busy")
            time.sleep(0.5)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    writer: Any = ray.remote(Writer).options(max_pending_calls=2).remote()
    ray.get(writer.__ray_ready__.remote())
    print("ready", flush=True)
    for part in range(10_000):
        send(writer, part)


if __name__ == "__main__":
    main()
