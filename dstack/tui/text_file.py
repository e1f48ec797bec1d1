"""Writes what a view exports to a text file."""

from __future__ import annotations

import os

from dstack.errors import UsageError


def write_text(path: str, text: str) -> None:
    """Write a new file that only its owner can read. Raises :class:`UsageError` if the file exists or on failure."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError as error:
        raise UsageError(f"{path} exists.", "Give another name.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error
