"""A driver that retries a call beyond an actor's `max_pending_calls`, before the call that would let others end.

Each call waits until the file is sealed. The driver seals it after six parts, but the actor takes four calls of a
caller at a time. No code of Ray waits for anything, and Ray does not report the limit: but the loop shows what it
catches, and Ray lists the calls.

Expected: running
Outside: driver in sleep
Next step: driver pending_calls_limit.py catches PendingCallsLimitExceeded: it has 4 calls to actor Writer
"""

import os
import threading
import time
from typing import Any

import ray
from ray.exceptions import PendingCallsLimitExceeded


class Writer:
    def __init__(self) -> None:
        self.sealed = threading.Event()
        self.parts: list[int] = []

    def write(self, part: int) -> int:
        self.parts.append(part)
        self.sealed.wait()
        return len(self.parts)

    def seal(self) -> None:
        self.sealed.set()


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
    writer: Any = ray.remote(Writer).options(max_concurrency=8, max_pending_calls=4).remote()
    ray.get(writer.__ray_ready__.remote())
    print("ready", flush=True)
    written = [send(writer, part) for part in range(6)]
    print(ray.get([*written, writer.seal.remote()]))


if __name__ == "__main__":
    main()
