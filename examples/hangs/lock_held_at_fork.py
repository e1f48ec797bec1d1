"""A process is forked while a thread of its parent holds a lock, which no thread of the fork will release.

Expected: hang (finding: orphaned)
Behind: driver lock_held_at_fork.py
Points at: with self.lock:
Next step: Start child processes with the spawn or forkserver method
"""

import multiprocessing
import os
import threading
import time
from typing import Any

import ray


class Journal:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lines: list[str] = []
        threading.Thread(target=self.flush, name="flusher", daemon=True).start()

    def flush(self) -> None:
        while True:
            with self.lock:
                time.sleep(0.2)
            time.sleep(0.001)

    def add(self, line: str) -> None:
        with self.lock:
            self.lines.append(line)


class Loader:
    def load(self) -> int:
        journal, fork = Journal(), multiprocessing.get_context("fork")
        time.sleep(0.1)
        children = [fork.Process(target=journal.add, args=(f"part {part}",)) for part in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        return len(children)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    loader: Any = ray.remote(Loader).options(num_cpus=0).remote()
    loaded = loader.load.remote()
    print("ready", flush=True)
    print(ray.get(loaded))


if __name__ == "__main__":
    main()
