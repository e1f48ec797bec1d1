"""A thread that should set an event has ended with an exception, which only the process's log has.

The reader waits for the event without a timeout. The thread's first line raises, so nothing will set it, and no stack
shows why: the thread is gone.

Expected: stalled
Members: Reader.first, driver thread_raised.py
Points at: self.ready.wait()
Printed: Exception in thread loader: KeyError: 'rows'
Next step: Correct the exception at thread_raised.py: what ended there may have had to end this wait.
"""

import os
import threading
from typing import Any

import ray


class Reader:
    def __init__(self) -> None:
        self.ready = threading.Event()
        self.rows: list[int] = []

    def load(self, table: dict[str, list[int]]) -> None:
        self.rows = table["rows"]
        self.ready.set()

    def first(self) -> int:
        threading.Thread(target=self.load, args=({"row": [1, 2]},), name="loader").start()
        self.ready.wait()
        return self.rows[0]


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    reader: Any = ray.remote(Reader).remote()
    first = reader.first.remote()
    print("ready", flush=True)
    print(ray.get(first))


if __name__ == "__main__":
    main()
