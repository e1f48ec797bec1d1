"""ObjectRefs and generators of Ray's in another process's memory."""

from __future__ import annotations

from collections.abc import Iterable

from dstack.probes.node.memory import Unreadable
from dstack.probes.node.objects import Objects

OBJECT_REF_TYPES = ("ray._raylet.ObjectRef", "ray.ObjectRef")
OBJECT_REF_ID = 32
"""Where an ObjectRef keeps the bytes of its id; seen on Ray 2.46, 2.55 and 2.60."""

OBJECT_REF_OWNER = 64
"""Where an ObjectRef keeps its owner's address, a std::string of the ABI before C++11: a pointer to the text, with its
length 24 bytes before. The text is a serialized rpc.Address, of which the worker id is the last field. Empty where
the process itself owns it by ``ray.put`` on Ray 2.46. Seen on Ray 2.46 and 2.60."""

WORKER_ID_FIELD = b"\x22\x1c"
"""What stands before the 28 bytes of a worker id in a serialized rpc.Address: field 4, a string of that length."""
STRING_LENGTH = 24
MAX_ADDRESS = 1024
ID_SIZE = 28

GENERATOR = "ObjectRefGenerator"
"""A class in Python; its instances keep the ref of the generator's task. Seen on Ray 2.46 and 2.60."""


def object_ref(objects: Objects, address: int) -> str:
    """The id, in hex, of the ObjectRef at ``address``."""
    objects.expect(address, *OBJECT_REF_TYPES)
    return plausible_id(objects.memory.read(address + OBJECT_REF_ID, ID_SIZE))


def owner(objects: Objects, address: int) -> str:
    """The id of the worker that owns the ObjectRef at ``address``, which is one; empty where it does not say."""
    text = objects.memory.pointer(address + OBJECT_REF_OWNER)
    size = objects.memory.pointer(text - STRING_LENGTH)
    if not ID_SIZE < size <= MAX_ADDRESS:
        return ""
    address = text + size - ID_SIZE
    field, worker_id = objects.memory.read(address - 2, 2), objects.memory.read(address, ID_SIZE)
    return worker_id.hex() if field == WORKER_ID_FIELD else ""


def owners(objects: Objects, refs: Iterable[int]) -> list[str]:
    """The worker ids of the owners of these ObjectRefs, in order; none where none can be read."""
    try:
        return [owner(objects, ref) for ref in refs]
    except Unreadable:
        return []


def ref_of_generator(objects: Objects, waitable: int) -> int:
    """The address of the ref of a generator's task, or of the ObjectRef itself that this is."""
    if not objects.is_a(waitable, GENERATOR):
        return waitable
    return objects.attributes(waitable).get("_generator_ref", 0)


def plausible_id(data: bytes) -> str:
    """The ObjectRef id in hex, if these 28 bytes can be one: a task and a job, and an index from 1 on.

    Raises :class:`Unreadable` otherwise.
    """
    unique, job, index = data[:8], data[20:24], int.from_bytes(data[24:], "little")
    if not index or unique == bytes(8) or job in (bytes(4), b"\xff" * 4):
        raise Unreadable(f"{data.hex()} is not the id of an ObjectRef")
    return data.hex()
