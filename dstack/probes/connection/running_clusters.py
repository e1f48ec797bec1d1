"""The Ray clusters on this machine, found as Ray 2.46 and 2.60 find them, without loading Ray."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_FLAG = "--gcs-address="


def gcs_addresses() -> set[str]:
    """The GCS addresses in the command lines of all raylets here."""
    words = (word for line in _command_lines() if _is_raylet(line) for part in line for word in part.split(" "))
    found = {word.removeprefix(_FLAG).partition("=")[0] for word in words if word.startswith(_FLAG)}
    return found - {"", "None"}


def latest_address() -> str | None:
    """The GCS address that ``ray start`` noted last, also of a cluster that has ended since."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with contextlib.suppress(OSError):
        return Path(folder, "ray", "ray_current_cluster").read_text().strip() or None
    return None


def _is_raylet(command_line: list[str]) -> bool:
    return "raylet" in os.path.basename(command_line[0])


def _command_lines() -> Iterator[list[str]]:
    """Of all processes; one that sets its own title may have written words with spaces between them."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace")
            yield line.removesuffix("\0").split("\0" if line.endswith("\0") else " ")
