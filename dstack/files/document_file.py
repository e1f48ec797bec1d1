"""Files with one JSON document, gzipped where the name ends in ``.json.gz``: snapshots, recordings and profiles.

Files may come from strangers, so memory is bounded, and the version is checked before the types. Error messages say
what is invalid and where.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec

from dstack.errors import SnapshotFileError, UsageError
from dstack.files.file_output import STDOUT, require_new, write_file
from dstack.observed.calls import Int
from dstack.processes.gc_pause import GcPause
from dstack.words import UNSEEN

READ_DIRECTORIES = "Give a file of it, or open all of them: dstack tui {}"

MAX_BYTES = 256 * 2**20
"""The largest file that is read, and the most it may unpack to: a snapshot of 40,000 workers at 6 kB each."""

_CHUNK_BYTES = 2**20
_T = TypeVar("_T")
_D = TypeVar("_D")


class _Header(msgspec.Struct):
    """What is read first: enough to tell what the rest would have to be."""

    schema: str
    version: tuple[Int, Int]
    dstack_version: str = "unknown"


_HEADER = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class DocumentFormat(Generic[_D]):
    """A kind of document: its schema and version, its name in messages, and the command that writes such files.

    ``problems`` are what types allow and later code could not use, each with its place; ``limits`` are the numbers of
    something in a document, by its name, with the most that is read.
    """

    noun: str
    schema: str
    version: tuple[int, int]
    decoder: msgspec.json.Decoder[_D]
    command: str
    problems: Callable[[_D], Iterator[str]]
    limits: Callable[[_D], Iterator[tuple[str, int, int]]]

    @property
    def remedy(self) -> str:
        """What to do about a file that cannot be read."""
        return f"Take a new {self.noun} with: {self.command} -o FILE"

    def load(self, path: str | os.PathLike[str]) -> _D:
        """Read a file that has the same major format version as this dstack; raises what :meth:`read` raises."""
        path = Path(path)
        return self.loads(self.read(path), name=str(path))

    def loads(self, data: bytes | bytearray, *, name: str = "The data") -> _D:
        """Decode the JSON text of a document; ``name`` is what the sentence of a SnapshotFileError calls it."""
        document = self.decode(data, name)
        if (wrong := next(self.problems(document), None)) is not None:
            raise SnapshotFileError(f"{name} is inconsistent: {wrong}.", self.remedy)
        for what, count, most in self.limits(document):
            if count > most:
                raise SnapshotFileError(
                    f"{name} has more than {most:,} {what}, the limit for a {self.noun} file.", self.remedy
                )
        return document

    def read(self, path: Path) -> bytearray:
        """The JSON text in a file, at most :data:`MAX_BYTES`.

        Raises :class:`UsageError` for a name that does not end in ``.json`` or ``.json.gz``, and
        :class:`SnapshotFileError` for all other failures.
        """
        try:
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise SnapshotFileError(f"{path} is a directory.", READ_DIRECTORIES.format(path))
            is_gzip = self.is_gzip(path)
            if not stat.S_ISREG(mode):
                raise SnapshotFileError(f"{path} is not a regular file.", "Give a file, not a device or a pipe.")
            with path.open("rb") as file:
                data = _read(gzip.GzipFile(fileobj=file) if is_gzip else file)
        except FileNotFoundError as error:
            raise SnapshotFileError(f"{path}: no such file.", "Check the name.") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SnapshotFileError(f"{path} is not valid gzip: {ends_of(error)}.", self.remedy) from error
        except OSError as error:
            raise SnapshotFileError(
                f"Cannot read {path}: {error.strerror}.", "Check the name and its permissions."
            ) from error
        if len(data) > MAX_BYTES:
            what = f"{path} has more than {MAX_BYTES >> 20} MiB, the limit for a {self.noun} file."
            raise SnapshotFileError(what, "Check that it is a file of dstack.")
        return data

    def decode(self, data: bytes | bytearray, name: str) -> _D:
        """The document in a JSON text, with valid types; ``name`` is what messages call the text.

        Takes up to 20 times as much memory as the text has bytes; of real documents twice as much.
        """
        header = self._decoded(_HEADER, data, name, self.remedy)
        self._refuse_other_versions(header, name)
        newer = f"Use a newer version of dstack: {ends_of(header.dstack_version)} wrote the file."
        with GcPause():  # half of the time of a large document
            return self._decoded(self.decoder, data, name, newer if header.version > self.version else self.remedy)

    def is_schema_of(self, data: bytes | bytearray) -> bool:
        """Whether a JSON text states this schema; it may be invalid in all else."""
        try:
            return _HEADER.decode(data).schema == self.schema
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False

    def save(self, document: _D, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write a document whole or not at all, readable by its owner only; ``-`` is standard output, as JSON.

        An existing file is kept unless ``force``. Raises what :meth:`require_writable` raises, and
        :class:`SnapshotFileError` when the system refuses. A BrokenPipeError of standard output passes through.
        """
        self.require_writable(path, force=force)
        data = to_json(document)
        if os.fspath(path) == STDOUT:
            data += b"\n"
        elif self.is_gzip(Path(path)):
            data = gzip.compress(data, compresslevel=6, mtime=0)
        write_file(path, data, force=force)

    def require_writable(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Raise :class:`UsageError` if :meth:`save` would not take ``path``; ask before the work for its content."""
        if os.fspath(path) != STDOUT:
            require_new(path, force=force)
            self.is_gzip(Path(path))

    def is_gzip(self, path: Path) -> bool:
        """Whether the file is compressed, by its name. Raises :class:`UsageError` for a name of another kind."""
        name = path.name.lower()
        if not name.endswith((".json", ".json.gz")):
            raise UsageError(
                f"{path} is not a valid name for a {self.noun} file.", "Use a name that ends in .json or .json.gz."
            )
        return name.endswith(".gz")

    def _decoded(self, decoder: msgspec.json.Decoder[_T], data: bytes | bytearray, name: str, remedy: str) -> _T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SnapshotFileError(f"{name} is not a valid {self.noun}: {_why(error, data)}.", remedy) from error

    def _refuse_other_versions(self, header: _Header, name: str) -> None:
        if header.schema != self.schema:
            raise SnapshotFileError(
                f"{name} has the schema {ends_of(header.schema)}, not {self.schema}.",
                f"Give a file that {self.command} -o wrote.",
            )
        major, minor = header.version
        if major == self.version[0]:
            return
        written = f"{name} has format {major}.{minor}, written by dstack {ends_of(header.dstack_version)}"
        is_newer = major > self.version[0]
        remedy = "Use a newer version of dstack." if is_newer else "Use the version of dstack that wrote it."
        raise SnapshotFileError(f"{written}; this dstack reads format {self.version[0]}.", remedy)


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


def ends_of(text: object) -> str:
    """Both ends of a text, parts of which may be quoted from a hostile file."""
    shown = str(text)
    return shown if len(shown) <= 200 else f"{shown[:100]}...{shown[-100:]}"


def _read(stream: IO[bytes] | gzip.GzipFile) -> bytearray:
    """Everything in ``stream``, but hardly more than ``MAX_BYTES``: what is longer is a bomb or no document."""
    data = bytearray()
    while len(data) <= MAX_BYTES and (chunk := stream.read(_CHUNK_BYTES)):
        data += chunk
    return data


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
            return ends_of(error)


def _first_byte_not_utf8(data: bytes | bytearray) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


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
