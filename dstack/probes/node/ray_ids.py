"""ObjectRefs, generators, and the ids of tasks and actors in another process's memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable
from dstack.probes.node.cpython.objects import TYPE, Objects

OBJECT_REF_TYPES = ("ray._raylet.ObjectRef", "ray.ObjectRef")
TYPE_AND_ID = "<8xQ16x28s"
"""The beginning of an ObjectRef: its type, and the bytes of its id; seen on Ray 2.46, 2.55 and 2.60."""

OBJECT_REF_OWNER = 64
"""The offset in an ObjectRef of its owner's address, a std::string of the ABI before C++11: a pointer to the text, with
its length 24 bytes before. The text is a serialized rpc.Address, of which the worker id is the last field. Empty where
the process itself owns it by ``ray.put`` on Ray 2.46. Seen on Ray 2.46 and 2.60."""

WORKER_ID_FIELD = b"\x22\x1c"
"""The bytes before the 28 of a worker id in a serialized rpc.Address: field 4, a string of that length."""
FIELD = "<2s28s"
WORD = "<Q"
STRING_LENGTH = 24
MAX_ADDRESS = 1024
ID_SIZE = 28

GENERATOR = "ObjectRefGenerator"
"""A class in Python; its instances keep the ref of the generator's task. Seen on Ray 2.46 and 2.60."""


def object_refs(objects: Objects, addresses: Sequence[int]) -> list[str]:
    """The ids, in hex, of the ObjectRefs at these addresses.

    This must be fast: Ray wakes a waiting thread every second, and a longer reading of 100,000 refs is not proven.
    """
    kinds: set[int] = set()
    ids = []
    for address in addresses:
        kind, identity = objects.memory.unpack(TYPE_AND_ID, address)
        if kind not in kinds:
            objects.expect(address, *OBJECT_REF_TYPES)
            kinds.add(kind)
        ids.append(plausible_id(identity))
    return ids


def owners(objects: Objects, refs: Iterable[int]) -> list[str]:
    """The worker ids of the owners of these ObjectRefs, in order; empty where one cannot be read."""
    try:
        return [_owner(objects.memory, ref) for ref in refs]
    except Unreadable:
        return []


def _owner(memory: ProcessMemory, ref: int) -> str:
    """The id of the worker that owns the ObjectRef at ``ref``; empty where the ref has none."""
    (text,) = memory.unpack(WORD, ref + OBJECT_REF_OWNER)
    (size,) = memory.unpack(WORD, text - STRING_LENGTH)
    if not ID_SIZE < size <= MAX_ADDRESS:
        return ""
    field, worker_id = memory.unpack(FIELD, text + size - struct.calcsize(FIELD))
    return worker_id.hex() if field == WORKER_ID_FIELD else ""


def _ref_of_generator(objects: Objects, waitable: int) -> int:
    """The address of the ref of a generator's task, or of the given ObjectRef itself."""
    if not objects.is_a(waitable, GENERATOR):
        return waitable
    return objects.attributes(waitable).get("_generator_ref", 0)


def refs_of(objects: Objects, waitables: Sequence[int]) -> list[int]:
    """The addresses of ObjectRefs; generators are replaced by the refs of their tasks."""
    ordinary: set[int] = set()
    refs = []
    for waitable in waitables:
        (kind,) = objects.memory.unpack(WORD, waitable + TYPE)
        ref = waitable if kind in ordinary else _ref_of_generator(objects, waitable)
        if ref == waitable:
            ordinary.add(kind)
        refs.append(ref)
    return refs


def plausible_id(data: bytes) -> str:
    """The ObjectRef id in hex, if these 28 bytes can be one: a task and a job, and an index from 1 on.

    Raises :class:`Unreadable` otherwise.
    """
    unique, job, index = data[:8], data[20:24], int.from_bytes(data[24:], "little")
    if not index or unique == bytes(8) or job in (bytes(4), b"\xff" * 4):
        raise Unreadable(f"{data.hex()} is not the id of an ObjectRef")
    return data.hex()


ACTOR_ID_TYPES = ("ray._raylet.ActorID", "ray.ActorID")
ACTOR_ID_AT, ACTOR_ID_SIZE = 32, 16
"""Where an ActorID has the bytes of its id; Ray 2.46 and 2.60."""


def actor_of_task(task_id: str | None) -> str:
    """The id of the actor in the id of a task; empty without a task."""
    return (task_id or "")[16:48]


def actor_of_handle(objects: Objects, handle: int) -> str:
    """The id of the actor that a handle is for. Raises :class:`Unreadable`."""
    objects.expect(handle, "ActorHandle")
    actor_id = objects.attribute(handle, "_ray_actor_id")
    objects.expect(actor_id, *ACTOR_ID_TYPES)
    return objects.memory.read(actor_id + ACTOR_ID_AT, ACTOR_ID_SIZE).hex()
