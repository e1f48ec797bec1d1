"""An actor waits for the end of a program whose output a thread of it reads slowly.

Expected: running
Members: Archive.pack
"""

import os
import subprocess
import threading
import time
from typing import Any

import ray


class Archive:
    def __init__(self) -> None:
        self.total = 0

    def pack(self) -> int:
        listing = subprocess.Popen(["seq", "100000"], stdout=subprocess.PIPE)
        reader = threading.Thread(target=self.read, args=(listing,), name="reader")
        reader.start()
        listing.wait()
        reader.join()
        return self.total

    def read(self, listing: Any) -> None:
        for line in listing.stdout:
            self.total += int(line)
            time.sleep(20.0)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    archive: Any = ray.remote(Archive).options(num_cpus=0).remote()
    packed = archive.pack.remote()
    print("ready", flush=True)
    print(ray.get(packed))


if __name__ == "__main__":
    main()
