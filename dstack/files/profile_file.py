"""Profile files: one JSON document, gzipped where the name ends in ``.json.gz``.

Files may come from strangers, so all input is validated like that of :mod:`dstack.files.snapshot_file`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dstack.errors import SnapshotFileError
from dstack.files.document_file import DocumentFormat, to_json
from dstack.files.recording_file import MAX_FRAMES, MAX_SAMPLES
from dstack.model.profile import SCHEMA, VERSION, Profile

FORMAT = DocumentFormat("profile", SCHEMA, VERSION, msgspec.json.Decoder(Profile), "dstack profile")


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile file that has the same major format version as this dstack.

    Raises :class:`UsageError` for a name that does not end in ``.json`` or ``.json.gz``, and
    :class:`SnapshotFileError` for all other failures.
    """
    path = Path(path)
    return loads(FORMAT.read(path), name=str(path))


def loads(data: bytes | bytearray, *, name: str = "The data") -> Profile:
    """Decode the JSON text of a profile; ``name`` is what the sentence of a SnapshotFileError calls it."""
    profile = FORMAT.decode(data, name)
    if (wrong := next(_inconsistencies(profile), None)) is not None:
        raise SnapshotFileError(f"{name} is inconsistent: {wrong}.", FORMAT.remedy)
    if sum(len(profile.paths[share.path]) for share in profile.shares) > MAX_FRAMES:
        raise SnapshotFileError(f"{name} has more than {MAX_FRAMES:,} steps, the limit for a profile file.")
    if sum(share.weight_us for share in profile.shares) > MAX_SAMPLES:
        raise SnapshotFileError(f"{name} has more than {MAX_SAMPLES:,} us, the limit for a profile file.")
    return profile


def dumps(profile: Profile) -> bytes:
    """The JSON text of ``profile``."""
    return to_json(profile)


def _inconsistencies(profile: Profile) -> Iterator[str]:
    """Indices to nowhere, which types allow and later code would follow."""
    for i, path in enumerate(profile.paths):
        for j, step in enumerate(path):
            if step >= len(profile.steps):
                yield f"no such step - at `$.paths[{i}][{j}]`"
    for i, share in enumerate(profile.shares):
        if share.root >= len(profile.roots):
            yield f"no such root - at `$.shares[{i}][0]`"
        if share.path >= len(profile.paths):
            yield f"no such path - at `$.shares[{i}][1]`"
