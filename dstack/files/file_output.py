"""Writes files whole or not at all, readable by their owner only; ``-`` is standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dstack.errors import SnapshotFileError, UsageError

STDOUT = "-"
WRITE_ELSEWHERE = "Free some space, or use another directory."
CHECK_STDOUT = "Check where standard output is redirected to."


def require_new(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise :class:`DstackError` unless a file can be there; ask before the work for its content.

    It must be in a directory that exists, be none itself, and be new unless ``force``.
    """
    name = os.fspath(path)
    if name == STDOUT:
        return
    if os.path.isdir(path):
        raise SnapshotFileError(f"{name} is a directory.", "Give the name of a file.")
    if not os.path.isdir(folder := os.path.dirname(name) or os.curdir):
        raise SnapshotFileError(f"{folder}: no such directory.", f"Create it: mkdir -p {folder}")
    if not force and os.path.lexists(path):
        raise _exists(path)


def write_file(path: str | os.PathLike[str], data: bytes, *, force: bool = False) -> None:
    """Write ``data`` to a new file, or to standard output.

    An existing file is kept unless ``force``. Raises :class:`UsageError` if one exists, and :class:`SnapshotFileError`
    when the system refuses. A BrokenPipeError of standard output passes through.
    """
    if os.fspath(path) == STDOUT:
        _write_stdout(data)
        return
    require_new(path, force=force)
    try:
        _write(Path(path), data, replace=force)
    except OSError as error:
        raise SnapshotFileError(f"Cannot write {os.fspath(path)}: {error.strerror}.", WRITE_ELSEWHERE) from error


def _exists(path: str | os.PathLike[str]) -> UsageError:
    return UsageError(f"{os.fspath(path)} already exists.", "Overwrite it with --force, or use another name.")


def _write(path: Path, data: bytes, *, replace: bool) -> None:
    import tempfile  # takes a fifth of the time of help

    handle, temporary = tempfile.mkstemp(prefix=".dstack-", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        if replace:
            os.replace(temporary, path)
        else:
            _rename_to_new(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _rename_to_new(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without hard links: write_file() has just seen that the name is free
        os.replace(temporary, path)


def _write_stdout(data: bytes) -> None:
    with explained_stdout():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def explained_stdout() -> Iterator[None]:
    """Raise :class:`SnapshotFileError` if standard output cannot be written; a BrokenPipeError passes through."""
    if sys.stdout is None:
        raise SnapshotFileError("Cannot write to standard output: it is closed.", CHECK_STDOUT)
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SnapshotFileError(f"Cannot write to standard output: {error.strerror}.", CHECK_STDOUT) from error
