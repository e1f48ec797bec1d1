"""Snapshot files: one JSON document, gzipped where the name ends in ``.json.gz``.

Files may come from strangers, so all input is validated: memory is bounded, the version is checked first, then the
types, then every index that later code follows. Error messages say what is invalid and where.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from dstack.errors import SnapshotFileError, UsageError
from dstack.file_output import STDOUT, require_new, write_file
from dstack.model import SCHEMA, VERSION, Coroutine, Int, Snapshot, Thread
from dstack.visible import UNSEEN

MAX_BYTES = 256 * 2**20
"""The largest file that is read, and the most it may unpack to: over 100,000 workers at 2 kB each."""

MAX_FRAMES = 100_000_000
"""Maximum number of frames shown by its threads, coroutines and child processes: many may share one long stack."""

_CHUNK_BYTES = 2**20
_RETAKE = "Take a new snapshot with: dstack snapshot -o FILE"
_T = TypeVar("_T")


class _Header(msgspec.Struct):
    """What is read first: enough to tell what the rest would have to be."""

    schema: str
    version: tuple[Int, Int]
    dstack_version: str = "unknown"


_HEADER = msgspec.json.Decoder(_Header)
_SNAPSHOT = msgspec.json.Decoder(Snapshot)


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot file that has the same major format version as this dstack.

    Raises :class:`UsageError` for a name that does not end in ``.json`` or ``.json.gz``, and
    :class:`SnapshotFileError` for all other failures.
    """
    path = Path(path)
    is_gzip = _is_gzip(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SnapshotFileError(f"{path} is not a regular file.")
        with path.open("rb") as file:
            data = _read(gzip.GzipFile(fileobj=file) if is_gzip else file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotFileError(f"{path} is not valid gzip: {_ends(error)}.", _RETAKE) from error
    except OSError as error:
        raise SnapshotFileError(f"Cannot read {path}: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise SnapshotFileError(f"{path} has more than {MAX_BYTES >> 20} MiB, the limit for a snapshot file.")
    return loads(data, name=str(path))


def loads(data: bytes | bytearray, *, name: str = "The data") -> Snapshot:
    """Decode the JSON text of a snapshot; ``name`` is what the sentence of a SnapshotFileError calls it.

    Takes up to 20 times as much memory as the text has bytes; of real snapshots twice as much.
    """
    header = _decode(_HEADER, data, name, _RETAKE)
    _refuse_other_versions(header, name)
    newer = f"Use a newer version of dstack: {_ends(header.dstack_version)} wrote the file."
    snapshot = _decode(_SNAPSHOT, data, name, newer if header.version > VERSION else _RETAKE)
    if (wrong := next(_inconsistencies(snapshot), None)) is not None:
        raise SnapshotFileError(f"{name} is inconsistent: {wrong}.", _RETAKE)
    if _frames_shown(snapshot) > MAX_FRAMES:
        raise SnapshotFileError(f"{name} has more than {MAX_FRAMES:,} frames, the limit for a snapshot file.")
    return snapshot


def save(snapshot: Snapshot, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write ``snapshot`` whole or not at all, readable by its owner only; ``-`` is standard output, as JSON.

    An existing file is kept unless ``force``. Raises what :func:`require_writable` raises, and
    :class:`SnapshotFileError` when the system refuses. A BrokenPipeError of standard output passes through.
    """
    require_writable(path, force=force)
    data = dumps(snapshot)
    if os.fspath(path) == STDOUT:
        data += b"\n"
    elif _is_gzip(Path(path)):
        data = gzip.compress(data, compresslevel=6, mtime=0)
    write_file(path, data, force=force)


def dumps(snapshot: Snapshot) -> bytes:
    """The JSON text of ``snapshot``."""
    return to_json(snapshot)


def to_json(value: object) -> bytes:
    """The JSON text of a value, in which nothing drives a terminal that it is printed on.

    Names that are no valid Unicode are written with their bytes escaped.
    """
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)))
    if data.isascii() and b"\x7f" not in data:
        return data
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], data.decode()).encode()


def require_writable(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise :class:`UsageError` if :func:`save` would not take ``path``; ask before the work of a snapshot."""
    if os.fspath(path) != STDOUT:
        _is_gzip(Path(path))
        require_new(path, force=force)


def _is_gzip(path: Path) -> bool:
    name = path.name.lower()
    if not name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"{path} is not a valid name for a snapshot file.", "Use a name that ends in .json or .json.gz."
        )
    return name.endswith(".gz")


def _read(stream: IO[bytes] | gzip.GzipFile) -> bytearray:
    """Everything in ``stream``, but hardly more than ``MAX_BYTES``: what is longer is a bomb or no snapshot."""
    data = bytearray()
    while len(data) <= MAX_BYTES and (chunk := stream.read(_CHUNK_BYTES)):
        data += chunk
    return data


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes | bytearray, name: str, remedy: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotFileError(f"{name} is not a valid snapshot: {_why(error, data)}.", remedy) from error


def _refuse_other_versions(header: _Header, name: str) -> None:
    if header.schema != SCHEMA:
        raise SnapshotFileError(
            f"{name} has the schema {_ends(header.schema)}, not {SCHEMA}.",
            "Give a file that dstack snapshot -o wrote.",
        )
    major, minor = header.version
    if major == VERSION[0]:
        return
    written = f"{name} has format {major}.{minor}, written by dstack {_ends(header.dstack_version)}"
    remedy = "Use a newer version of dstack." if major > VERSION[0] else "Use the version of dstack that wrote it."
    raise SnapshotFileError(f"{written}; this dstack reads format {VERSION[0]}.", remedy)


def _why(error: Exception, data: bytes | bytearray) -> str:
    """What keeps ``data`` from being decoded, and where."""
    match error:
        case _ if not data:
            return "it is empty"
        case UnicodeDecodeError():
            return f"it is not UTF-8 (byte {_first_byte_not_utf8(data)})"
        case RecursionError():
            return "its JSON is nested too deeply"
        case _ if str(error) == "Input data was truncated":
            return f"its JSON is truncated (byte {len(data)})"
        case _:
            return _ends(error)


def _first_byte_not_utf8(data: bytes | bytearray) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _ends(text: object) -> str:
    """Both ends of a text, parts of which may be quoted from a hostile file."""
    shown = str(text)
    return shown if len(shown) <= 200 else f"{shown[:100]}...{shown[-100:]}"


def _inconsistencies(snapshot: Snapshot) -> Iterator[str]:
    """Indices to nowhere, which types allow and later code would follow."""
    for i, stack in enumerate(snapshot.stacks):
        for j, frame in enumerate(stack):
            if frame >= len(snapshot.frames):
                yield f"no such frame - at `$.stacks[{i}][{j}]`"
    for i, sample in enumerate(snapshot.samples):
        for j, worker in enumerate(sample.workers):
            place = f"$.samples[{i}].workers[{j}].process"
            process = worker.process
            yield from _misplaced(snapshot, process.threads if process else (), f"{place}.threads")
            yield from _misplaced(snapshot, process.coroutines if process else (), f"{place}.coroutines")
            for k, child in enumerate(process.children if process else ()):
                yield from _misplaced(snapshot, child.threads, f"{place}.children[{k}].threads")
                yield from _misplaced(snapshot, child.coroutines, f"{place}.children[{k}].coroutines")
                if child.children:
                    yield f"a child process has children - at `{place}.children[{k}].children`"


def _frames_shown(snapshot: Snapshot) -> int:
    processes = (worker.process for sample in snapshot.samples for worker in sample.workers if worker.process)
    return sum(len(snapshot.stacks[one.stack]) for process in processes for one in process.with_stacks())


def _misplaced(snapshot: Snapshot, executions: Sequence[Thread | Coroutine], place: str) -> Iterator[str]:
    for k, one in enumerate(executions):
        if one.stack >= len(snapshot.stacks):
            yield f"no such stack - at `{place}[{k}].stack`"
        elif one.call and one.call.frame >= len(snapshot.stacks[one.stack]):
            yield f"no such frame in its stack - at `{place}[{k}].call.frame`"


def _without_surrogates(value: Any) -> Any:
    """The same plain data with lone surrogates, which JSON cannot carry, spelled out."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_surrogates(item) for item in value]
        case _:
            return value
