"""A driver whose program has ended, but whose process stays: at its exit, Python waits for a thread.

The writer thread ends when it takes None from its queue. Only the handler of `atexit` puts None there, and handlers run
after all threads have ended that are no daemons. So `threading._shutdown` waits for the thread, and the thread for the
handler. Put None into the queue at the end of `main`, or make the thread a daemon.

Expected: stalled
Outside: driver in the exit of its process (threading._shutdown)
Next step: driver exit_behind_thread.py waits in the exit of its process (threading._shutdown)
"""

import atexit
import os
import queue
import threading
from typing import Any

import ray


class Store:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> int:
        self.lines.append(line)
        return len(self.lines)


def write_all(lines: queue.Queue[str | None], store: Any) -> None:
    while (line := lines.get()) is not None:
        ray.get(store.write.remote(line))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(Store).options(name="store").remote()
    lines: queue.Queue[str | None] = queue.Queue()
    atexit.register(lines.put, None)
    threading.Thread(target=write_all, args=(lines, store), name="writer").start()
    lines.put("begun")
    print("ready", flush=True)


if __name__ == "__main__":
    main()
