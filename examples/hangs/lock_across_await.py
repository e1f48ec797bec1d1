"""A `threading.Lock` that a coroutine holds while it awaits (as in ray#54201 and ray#51190).

`write` takes the lock and awaits a pause. Meanwhile the event loop starts a second `write`. Its wait for the lock
blocks the thread of the event loop, so the first `write` never resumes to release the lock.

Expected: deadlock
Members: Journal.write
Behind: driver lock_across_await.py
Points at: with self.lock:
Next step: Use an asyncio.Lock instead of the threading.Lock in Journal.write, which blocks its event loop
"""

import asyncio
import os
import threading
from typing import Any

import ray


class Journal:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lines: list[str] = []

    async def write(self, line: str) -> int:
        with self.lock:
            await asyncio.sleep(1.0)
            self.lines.append(line)
        return len(self.lines)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    journal: Any = ray.remote(Journal).options(name="journal").remote()
    ray.get(journal.__ray_ready__.remote())
    written = [journal.write.remote("first"), journal.write.remote("second")]
    print("ready", flush=True)
    print(ray.get(written))


if __name__ == "__main__":
    main()
