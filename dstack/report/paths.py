"""Paths of source files, short enough for a line; the file's name and line number always stay."""

from __future__ import annotations

import os

PACKAGES = ("/site-packages/", "/dist-packages/")
LONGEST_LOCATION = 40


def short_path(file: str) -> str:
    """Relative to the working directory, if there is one and it is shorter; without what is before site-packages."""
    for marker in PACKAGES:
        if marker in file:
            return file.rpartition(marker)[2]
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except FileNotFoundError:
        return file
    return relative if len(relative) < len(file) and not relative.startswith("..") else file


def shortened_left(location: str, longest: int) -> str:
    """``…/app/train.py:12``: without as many folders as it takes, but never without the file's name."""
    if len(location) <= longest:
        return location
    folders = location.split("/")
    while len(folders) > 1 and len("/".join(folders)) + 2 > longest:
        folders.pop(0)
    return "/".join(("…", *folders))


def place_of(file: str, line: int | None) -> str:
    """``app/train.py:12``; without the line where that is unknown, as in a library of C."""
    return f"{short_path(file)}:{line}" if line else short_path(file)


def location(file: str, line: int | None) -> str:
    """As :func:`place_of`, or ``…/app/train.py:12`` where that would take too much of a line."""
    return shortened_left(place_of(file, line), LONGEST_LOCATION)
