"""The version of dstack, and the versions of Ray that it is tested with."""

from __future__ import annotations

import re

__version__ = "0.1.0"
TESTED_RAYS = ((2, 46), (2, 60))
"""The first and the last minor version of Ray that dstack's tests run with."""


def release_of(version: str) -> tuple[int, int] | None:
    """``(2, 60)`` of ``2.60.1``; None if it is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def untested_ray(version: str) -> str:
    """That dstack is not tested with a version of Ray, as it is after the last one; empty for any other."""
    release = release_of(version)
    if release is not None and release <= TESTED_RAYS[1]:
        return ""
    last = ".".join(map(str, TESTED_RAYS[1]))
    return f"dstack is tested with Ray up to {last}, not with {version or 'this version'}"
