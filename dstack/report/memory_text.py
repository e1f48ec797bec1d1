"""Who holds which bytes of the object store, as text and as JSON (schema ``dstack.memory/1``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta
from rich.console import Console

from dstack import words
from dstack.analysis.naming import names
from dstack.analysis.views.object_memory import ObjectMemory, Share
from dstack.files.document_file import to_json
from dstack.model.snapshot import Snapshot, StoredObject
from dstack.report.check_schema import Json
from dstack.report.rich_text import SafeText

SHOWN_SHARES, SHOWN_KEEPERS = 10, 2
NO_OBJECTS = "No process reports a value of 100 KiB or more in the object store."
SMALLER = "Smaller values are in the memory of their owners. A value that several processes keep counts for each."


def memory_lines(memory: ObjectMemory, shown: int = SHOWN_SHARES) -> Iterator[tuple[str, Sequence[str]]]:
    """Titled lines: the stores of the nodes, then sums by what made and what keeps the values."""
    titles = names.nodes(one.node for one in memory.nodes)
    yield "Object stores", [f"{titles[one.node.node_id]}: {one.words}" for one in memory.nodes]
    if memory.stored.total:
        yield "Made by", _shares(memory.makers, shown)
        yield "Kept by", _shares(memory.keepers, shown)


def in_a_sentence(memory: ObjectMemory) -> str:
    """``80 MiB used of 200 MiB; kept by driver train.py: 160 MiB in 2 objects; merge: 80 MiB in 1 object``."""
    used = sum(one.used_bytes or 0 for one in memory.nodes)
    total = words.size(sum(one.total_bytes for one in memory.nodes))
    kept = "; ".join(_shares(memory.keepers, SHOWN_KEEPERS))
    return f"{words.size(used)} used of {total}{f'; kept by {kept}' if kept else ''}"


def _shares(shares: Sequence[Share], shown: int) -> list[str]:
    more = [f"{len(shares) - shown:,} more"] if len(shares) > shown else []
    return [*(one.words for one in shares[:shown]), *more]


def print_memory(console: Console, memory: ObjectMemory, shown: int) -> None:
    """Prints the sums, then the largest values with what keeps each."""
    stored = memory.stored
    if stored.total:
        console.print(SafeText(f"{words.size(stored.size_bytes)} in {words.plural(stored.total, 'object')}", "bold"))
    for title, lines in memory_lines(memory):
        console.print(SafeText(f"{title}:", "bold"))
        for line in lines:
            console.print(SafeText(f"  {line}"), soft_wrap=True)
    if not stored.total:
        console.print(SafeText(NO_OBJECTS))
        return
    console.print(SafeText("Objects:", "bold"))
    for value in stored.largest[:shown]:
        _print_object(console, memory, value)
    if left_out := stored.total - len(stored.largest[:shown]):
        console.print(SafeText(f"  {words.plural(left_out, 'smaller object')} not shown", "dim"))
    console.print(SafeText(SMALLER, "dim"), soft_wrap=True)


def _print_object(console: Console, memory: ObjectMemory, value: StoredObject) -> None:
    line = SafeText(f"  {words.size(value.size_bytes)}", "bold").append(f"  {memory.made_by(value)}", "cyan")
    console.print(line.append(f"  {value.ref}, {memory.place(value)}", "dim"), soft_wrap=True)
    console.print(SafeText(f"    owned by {memory.owner(value)}; kept by:"), soft_wrap=True)
    for why in memory.why_kept(value):
        console.print(SafeText(f"    - {why}"), soft_wrap=True)


class MemoryShare(TypedDict):
    """A sum of values."""

    name: Annotated[str, Meta(description="The wording may change")]
    objects: int
    bytes: int
    bytes_in_use: int
    processes: int


class MemoryUse(TypedDict):
    """How one process keeps a value."""

    worker_id: str
    references: Annotated[int, Meta(description="ObjectRefs in its variables")]
    arguments: Annotated[int, Meta(description="Unfinished tasks of it that take the value")]
    is_in_use: Annotated[bool, Meta(description="Whether it uses the value in shared memory")]
    call_site: Annotated[str, Meta(description="Where it got the ref; empty unless Ray records that")]


class MemoryObject(TypedDict):
    """A value in the object store."""

    ref: str
    bytes: int
    made_by: Annotated[str, Meta(description="The wording may change")]
    owner_id: str | None
    kept_by: Annotated[list[str], Meta(description="Parts of a sentence; the wording may change")]
    uses: list[MemoryUse]
    inside: Annotated[list[str], Meta(description="Refs of objects that contain it")]
    node_ids: Annotated[list[str] | None, Meta(description="Nodes with a copy in memory; null if unknown")]
    is_spilled: bool | None
    spilled_on: Annotated[str | None, Meta(description="Node with the file, null for external storage")]


class MemoryStore(TypedDict):
    """The object store of a node."""

    node_id: str
    node_ip: str
    total_bytes: int
    used_bytes: int | None
    argument_bytes: Annotated[int | None, Meta(description="Pinned as arguments of running tasks")]
    waiting_for_memory: Annotated[int | None, Meta(description="Requests for workers that wait for such room")]
    counts: Annotated[dict[str, int], Meta(description="What its raylet counts, without zeros")]


class MemoryDocument(TypedDict):
    """What ``dstack memory --json`` prints."""

    schema: Literal["dstack.memory/1"]
    address: str
    ray_version: str
    taken_at: Annotated[float, Meta(description="Unix time")]
    objects_total: int
    bytes_total: int
    nodes: list[MemoryStore]
    made_by: list[MemoryShare]
    kept_by: list[MemoryShare]
    objects: Annotated[list[MemoryObject], Meta(description="The largest first")]


def memory_schema() -> Json:
    """The JSON Schema of ``dstack.memory/1``."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(MemoryDocument)}


def memory_json(snapshot: Snapshot, memory: ObjectMemory) -> bytes:
    """The listing as JSON, indented, with a newline at its end."""
    document: MemoryDocument = {
        "schema": "dstack.memory/1",
        "address": snapshot.address,
        "ray_version": snapshot.ray_version,
        "taken_at": snapshot.taken_at,
        "objects_total": memory.stored.total,
        "bytes_total": memory.stored.size_bytes,
        "nodes": list(_stores(memory)),
        "made_by": list(map(_share, memory.makers)),
        "kept_by": list(map(_share, memory.keepers)),
        "objects": [_object(memory, value) for value in memory.stored.largest],
    }
    return msgspec.json.format(to_json(document), indent=2) + b"\n"


def _stores(memory: ObjectMemory) -> Iterator[MemoryStore]:
    for one in memory.nodes:
        yield {
            "node_id": one.node.node_id,
            "node_ip": one.node.ip,
            "total_bytes": one.total_bytes,
            "used_bytes": one.used_bytes,
            "argument_bytes": one.report.argument_bytes if one.report else None,
            "waiting_for_memory": one.report.waiting_for_memory if one.report else None,
            "counts": {str(name): count for name, count in one.report.counts.items()} if one.report else {},
        }


def _share(share: Share) -> MemoryShare:
    return {
        "name": share.name,
        "objects": share.objects,
        "bytes": share.size_bytes,
        "bytes_in_use": share.mapped_bytes,
        "processes": share.processes,
    }


def _object(memory: ObjectMemory, value: StoredObject) -> MemoryObject:
    place = value.place
    return {
        "ref": value.ref,
        "bytes": value.size_bytes,
        "made_by": memory.made_by(value),
        "owner_id": value.owner_id,
        "kept_by": list(memory.why_kept(value)),
        "uses": [
            {
                "worker_id": use.worker_id,
                "references": use.local,
                "arguments": use.argument,
                "is_in_use": use.is_mapped,
                "call_site": use.call_site,
            }
            for use in value.uses
        ],
        "inside": list(value.inside),
        "node_ids": list(place.node_ids) if place else None,
        "is_spilled": place.is_spilled if place else None,
        "spilled_on": place.spilled_on if place else None,
    }
