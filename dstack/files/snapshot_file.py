"""Snapshot files: one JSON document, gzipped where the name ends in ``.json.gz``.

Files may come from strangers, so all input is validated: memory is bounded, the version is checked first, then the
types, then every index that later code follows. :mod:`dstack.files.document_file` does all but the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dstack.files.document_file import DocumentFormat, to_json
from dstack.model.snapshot import SCHEMA, VERSION, Snapshot, need_of
from dstack.observed.calls import NEEDS
from dstack.observed.ledgers import Collective
from dstack.observed.processes import Coroutine, EndedTask, Process, Thread

MAX_FRAMES = 100_000_000
"""Maximum number of frames shown by its threads, coroutines and child processes: many may share one long stack."""


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot file that has the same major format version as this dstack.

    Raises :class:`UsageError` for a name that does not end in ``.json`` or ``.json.gz``, and
    :class:`SnapshotFileError` for all other failures.
    """
    return FORMAT.load(path)


def loads(data: bytes | bytearray, *, name: str = "The data") -> Snapshot:
    """Decode the JSON text of a snapshot; ``name`` is what the sentence of a SnapshotFileError calls it."""
    return FORMAT.loads(data, name=name)


def save(snapshot: Snapshot, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write ``snapshot`` whole or not at all; see :meth:`DocumentFormat.save`."""
    FORMAT.save(snapshot, path, force=force)


def dumps(snapshot: Snapshot) -> bytes:
    """The JSON text of ``snapshot``, with every field of its observed values.

    Defaults could be left out, for half of the text and nine tenths of the compressed file; but msgspec 0.22 takes
    160 ns to set a missing field of a dataclass, and 50 ns to read a stated one: decoding would take twice as long.
    """
    return to_json(snapshot)


def snapshot_schema() -> dict[str, Any]:
    """The JSON Schema of a snapshot file; a call has one of several needs."""
    _, of_needs = msgspec.json.schema_components(NEEDS.values(), ref_template="#/$defs/{name}")
    any_need = {"anyOf": [{"$ref": f"#/$defs/{need.__name__}"} for need in NEEDS.values()]}
    schema = msgspec.json.schema(Snapshot, schema_hook=lambda kind: any_need)
    return {**schema, "$defs": {**schema["$defs"], **of_needs}}


def require_writable(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise :class:`UsageError` if :func:`save` would not take ``path``; ask before the work of a snapshot."""
    FORMAT.require_writable(path, force=force)


def _inconsistencies(snapshot: Snapshot) -> Iterator[str]:
    """Indices to nowhere, which types allow and later code would follow."""
    for i, stack in enumerate(snapshot.stacks):
        for j, frame in enumerate(stack):
            if frame >= len(snapshot.frames):
                yield f"no such frame - at `$.stacks[{i}][{j}]`"
    for i, sample in enumerate(snapshot.samples):
        for j, worker in enumerate(sample.workers):
            place = f"$.samples[{i}].workers[{j}].process"
            yield from _misplaced_in(snapshot, worker.process, place) if worker.process else ()
            for k, child in enumerate(worker.process.children if worker.process else ()):
                yield from _misplaced_in(snapshot, child, f"{place}.children[{k}]")
                if child.children:
                    yield f"a child process has children - at `{place}.children[{k}].children`"
    for i, dump in enumerate(snapshot.recorder_dumps):
        yield from _misplaced(snapshot, dump.collectives, f"$.recorder_dumps[{i}].collectives")
        if not dump.has_sound_ledgers:
            yield f"no such group or collective - at `$.recorder_dumps[{i}].ledgers`"


def _limits(snapshot: Snapshot) -> Iterator[tuple[str, int, int]]:
    processes = (worker.process for sample in snapshot.samples for worker in sample.workers if worker.process)
    shown = (len(snapshot.stacks[one.stack]) for process in processes for one in process.with_stacks())
    yield "frames", sum(shown), MAX_FRAMES


def _misplaced_in(snapshot: Snapshot, process: Process, place: str) -> Iterator[str]:
    yield from _misplaced(snapshot, process.threads, f"{place}.threads")
    yield from _misplaced(snapshot, process.coroutines, f"{place}.coroutines")
    yield from _misplaced(snapshot, process.ended_tasks, f"{place}.ended_tasks")
    yield from _misplaced(snapshot, process.collectives, f"{place}.collectives")
    if not process.has_sound_ledgers:
        yield f"no such group or collective - at `{place}.ledgers`"


def _misplaced(
    snapshot: Snapshot, those: Sequence[Thread | Coroutine | EndedTask | Collective], place: str
) -> Iterator[str]:
    for k, one in enumerate(those):
        call = one.call if isinstance(one, (Thread, Coroutine)) else None
        if one.stack >= len(snapshot.stacks):
            yield f"no such stack - at `{place}[{k}].stack`"
        elif call and call.frame >= max(1, len(snapshot.stacks[one.stack])):
            yield f"no such frame in its stack - at `{place}[{k}].call.frame`"


FORMAT = DocumentFormat(
    "snapshot",
    SCHEMA,
    VERSION,
    msgspec.json.Decoder(Snapshot, dec_hook=need_of),
    "dstack snapshot",
    _inconsistencies,
    _limits,
)
