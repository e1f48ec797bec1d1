"""A thread that should set an event has ended with an exception, and another one has begun its work again.

The log of the process has the exception, but it is not why the reader waits: the second thread works.

Expected: running
Members: Reader.first, driver thread_began_again.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time
from typing import Any

import ray


class Reader:
    def __init__(self) -> None:
        self.ready = threading.Event()
        self.rows: list[int] = []

    def load(self, table: dict[str, list[int]], seconds: float) -> None:
        self.rows = table["rows"]
        time.sleep(seconds)
        self.ready.set()

    def first(self, seconds: float) -> int:
        for table in ({"row": [1, 2]}, {"rows": [1, 2]}):
            loader = threading.Thread(target=self.load, args=(table, seconds), name="loader")
            loader.start()
            loader.join(1.0)
        self.ready.wait()
        return self.rows[0]


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    reader: Any = ray.remote(Reader).remote()
    first = reader.first.remote(900.0)
    print("ready", flush=True)
    print(ray.get(first))


if __name__ == "__main__":
    main()
