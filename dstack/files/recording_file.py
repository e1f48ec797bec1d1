"""Recording files: one JSON document, gzipped where the name ends in ``.json.gz``.

Files may come from strangers, so all input is validated like that of :mod:`dstack.files.snapshot_file`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dstack.errors import SnapshotFileError
from dstack.files.document_file import DocumentFormat, to_json
from dstack.model.recording import SCHEMA, VERSION, Recording

MAX_FRAMES = 20_000_000
"""Maximum number of frames in the stacks of all counts: many may share one long stack."""
MAX_SAMPLES = 2**53
"""Maximum number of all samples, so that sums are exact in every reader of JSON."""

FORMAT = DocumentFormat("recording", SCHEMA, VERSION, msgspec.json.Decoder(Recording), "dstack record")


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording file that has the same major format version as this dstack.

    Raises :class:`UsageError` for a name that does not end in ``.json`` or ``.json.gz``, and
    :class:`SnapshotFileError` for all other failures.
    """
    path = Path(path)
    return loads(FORMAT.read(path), name=str(path))


def loads(data: bytes | bytearray, *, name: str = "The data") -> Recording:
    """Decode the JSON text of a recording; ``name`` is what the sentence of a SnapshotFileError calls it."""
    recording = FORMAT.decode(data, name)
    if (wrong := next(_inconsistencies(recording), None)) is not None:
        raise SnapshotFileError(f"{name} is inconsistent: {wrong}.", FORMAT.remedy)
    if sum(len(recording.stacks[count.stack]) for count in recording.counts) > MAX_FRAMES:
        raise SnapshotFileError(f"{name} has more than {MAX_FRAMES:,} frames, the limit for a recording file.")
    if sum(count.samples for count in recording.counts) > MAX_SAMPLES:
        raise SnapshotFileError(f"{name} has more than {MAX_SAMPLES:,} samples, the limit for a recording file.")
    return recording


def save(recording: Recording, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write ``recording`` whole or not at all; see :meth:`DocumentFormat.save`."""
    FORMAT.save(recording, path, force=force)


def dumps(recording: Recording) -> bytes:
    """The JSON text of ``recording``."""
    return to_json(recording)


def _inconsistencies(recording: Recording) -> Iterator[str]:
    """Indices to nowhere, which types allow and later code would follow."""
    for i, stack in enumerate(recording.stacks):
        for j, frame in enumerate(stack):
            if frame >= len(recording.frames):
                yield f"no such frame - at `$.stacks[{i}][{j}]`"
    for i, count in enumerate(recording.counts):
        if count.thread >= len(recording.threads):
            yield f"no such thread - at `$.counts[{i}][0]`"
        if count.stack >= len(recording.stacks):
            yield f"no such stack - at `$.counts[{i}][1]`"
