"""Fill a disk while two actors wait for each other, run dstack, and print its outputs and files as JSON.

full_disk.py DIRECTORY, as root under ``unshare --mount``: a small file system is mounted at DIRECTORY for all temporary
files, including the cluster's.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clusters.dstack_command import check, dstack, settled_check
from tests.clusters.ray_clusters import DIRECTORY, run_example

SIZE = "120m"


def main() -> None:
    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "dstack-test", str(disk)], check=True)
    os.environ |= {"TMPDIR": str(disk), DIRECTORY: str(disk)}
    with run_example("hangs/mutual_get") as example:
        settled_check(example.address, example.environment, lambda document: document["verdict"] == "deadlock")
        fill(disk / "filled")
        where = ["--address", example.address]
        outputs = {}
        for name in ("snapshot.json", "snapshot.json.gz"):
            done = dstack("snapshot", *where, "-o", str(disk / name), environment=example.environment)
            outputs[name] = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        piped = subprocess.run(
            [
                "sh",
                "-c",
                '"$0" -m dstack check --address "$1" --json >"$2"',
                sys.executable,
                example.address,
                str(disk / "piped.json"),
            ],
            env=example.environment,
            capture_output=True,
            text=True,
        )
        full = check(example.address, example.environment)
        files = sorted(path.name for path in disk.iterdir())
        (disk / "filled").unlink()
        after = check(example.address, example.environment)
        outcome = {"full": full, "after": after, "outputs": outputs, "files": files}
        outcome["piped"] = {"code": piped.returncode, "stderr": piped.stderr}
    print(json.dumps(outcome))


def fill(path: Path) -> None:
    """Write until no byte is free."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


if __name__ == "__main__":
    main()
