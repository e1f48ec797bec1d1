"""An actor waits for the end of a program whose output it reads only afterwards: the pipe is full.

Expected: deadlock
Members: Archive.pack
Points at: listing.wait()
Next step: as Popen.communicate does, or let it write to a file: a pipe that is full stops its writer
"""

import os
import subprocess
from typing import Any

import ray


class Archive:
    def pack(self) -> int:
        listing = subprocess.Popen(["seq", "100000"], stdout=subprocess.PIPE)
        listing.wait()
        assert listing.stdout is not None
        return sum(map(int, listing.stdout))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    archive: Any = ray.remote(Archive).options(num_cpus=0).remote()
    packed = archive.pack.remote()
    print("ready", flush=True)
    print(ray.get(packed))


if __name__ == "__main__":
    main()
