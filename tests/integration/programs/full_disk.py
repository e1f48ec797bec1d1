"""Fills /tmp while two actors wait for each other, has dstack look, and prints as JSON what it said and did.

Run it in a mount namespace of its own, ``unshare --mount``, by root: /tmp is another there, and small.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from tests.clusters import run_example
from tests.command import check, dstack, settled_check

SIZE = "120m"


def main() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "dstack-test", "/tmp"], check=True)
    with run_example("hangs/mutual_get") as example:
        settled_check(example.address, example.environment, lambda told: told["verdict"] == "deadlock")
        fill(Path("/tmp/filled"))
        where = ["--address", example.address]
        outputs = {}
        for name in ("taken.json", "taken.json.gz"):
            done = dstack("snapshot", *where, "-o", f"/tmp/{name}", environment=example.environment)
            outputs[name] = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        piped = subprocess.run(
            [
                "sh",
                "-c",
                '"$0" -m dstack check --address "$1" --json >/tmp/piped.json',
                sys.executable,
                example.address,
            ],
            env=example.environment,
            capture_output=True,
            text=True,
        )
        full = check(example.address, example.environment)
        left = sorted(path.name for path in Path("/tmp").iterdir())
        Path("/tmp/filled").unlink()
        after = check(example.address, example.environment)
        told = {"full": full, "after": after, "outputs": outputs, "left": left}
        told["piped"] = {"code": piped.returncode, "stderr": piped.stderr}
    print(json.dumps(told))


def fill(path: Path) -> None:
    """Takes all the room there is, to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


if __name__ == "__main__":
    main()
