"""Reads Python objects of another process from ``/proc/PID/mem``: no ptrace, no signal, no pause.

Every object is checked by the name of its type before it is used and every size is bounded, so memory that moved
or was never what it seemed gives :class:`Unreadable`, not nonsense.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator

# PyObject: refcount at 0, type at 8; PyVarObject: size at 16; PyTypeObject.tp_name at 24; list items behind a pointer
# at 24, tuple items in place at 24. The same in CPython 3.10 to 3.13, x86-64, with the GIL.
REFCOUNT, TYPE, SIZE, TYPE_NAME, ITEMS = 0, 8, 16, 24, 24

OBJECT_REF_TYPES = ("ray._raylet.ObjectRef", "ray.ObjectRef")
OBJECT_REF_ID = 32
"""Where an ObjectRef keeps the bytes of its id; seen on Ray 2.46, 2.55 and 2.60."""

PTHREAD_TID = 720
"""Where glibc's struct pthread keeps the OS thread id; seen with glibc 2.36 on x86-64."""

ID_SIZE = 28
MAX_ITEMS = 1 << 20
MAX_NAME = 128


class Unreadable(Exception):
    """Memory is not mapped, not permitted, or not the object it was taken for."""


class ProcessMemory:
    """Reads of one process's memory, each bounded and checked.

    Raises :class:`Unreadable` from every method when the memory is not there, and ``PermissionError`` or
    ``ProcessLookupError`` on construction.
    """

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._type_names: dict[int, str] = {}

    def close(self) -> None:
        """Lets go of the process's memory."""
        os.close(self._fd)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``."""
        try:
            data = os.pread(self._fd, size, address)
        except (OSError, OverflowError, ValueError) as error:
            raise Unreadable(f"{size} bytes at {address:#x}: {error}") from error
        if len(data) != size:
            raise Unreadable(f"{size} bytes at {address:#x}: only {len(data)} are mapped")
        return data

    def pointer(self, address: int) -> int:
        """The pointer stored at ``address``."""
        return int.from_bytes(self.read(address, 8), "little")

    def int32(self, address: int) -> int:
        """The 32-bit integer stored at ``address``."""
        return int.from_bytes(self.read(address, 4), "little", signed=True)

    def type_name(self, address: int) -> str:
        """The type's name as C has it: ``list``, ``ray._raylet.ObjectRef``."""
        kind = self.pointer(address + TYPE)
        if kind not in self._type_names:
            self._type_names[kind] = self._c_string(self.pointer(kind + TYPE_NAME))
        return self._type_names[kind]

    def items(self, address: int) -> tuple[int, ...]:
        """Addresses of the items of a live list or tuple."""
        name = self.type_name(address)
        if name not in ("list", "tuple"):
            raise Unreadable(f"a {name} where a list or tuple was expected")
        refcount, _, size = struct.unpack("<qQq", self.read(address, 24))
        if refcount <= 0 or not 0 <= size <= MAX_ITEMS:
            raise Unreadable(f"a {name} of {size} items and {refcount} references")
        start = self.pointer(address + ITEMS) if name == "list" else address + ITEMS
        return struct.unpack(f"<{size}Q", self.read(start, 8 * size)) if size else ()

    def object_ref(self, address: int) -> str:
        """The id, in hex, of the ObjectRef at ``address``."""
        name = self.type_name(address)
        if name not in OBJECT_REF_TYPES:
            raise Unreadable(f"a {name} where an ObjectRef was expected")
        data = self.read(address, OBJECT_REF_ID + ID_SIZE)
        return plausible_id(data[OBJECT_REF_ID:])

    def _c_string(self, address: int) -> str:
        # A string may end right before an unmapped page, so pages are read one by one.
        text = b""
        while len(text) < MAX_NAME and b"\0" not in text:
            start = address + len(text)
            text += self.read(start, min(MAX_NAME, 4096 - start % 4096))
        return text.split(b"\0", 1)[0].decode("ascii", "replace")


@contextlib.contextmanager
def open_memory(pid: int) -> Iterator[ProcessMemory]:
    """A process's memory for the length of a ``with`` block."""
    memory = ProcessMemory(pid)
    try:
        yield memory
    finally:
        memory.close()


def plausible_id(data: bytes) -> str:
    """The ObjectRef id in hex, if these 28 bytes can be one: a task and a job, and an index from 1 on.

    Raises :class:`Unreadable` otherwise.
    """
    unique, job, index = data[:8], data[20:24], int.from_bytes(data[24:], "little")
    if not index or unique == bytes(8) or job in (bytes(4), b"\xff" * 4):
        raise Unreadable(f"{data.hex()} is not the id of an ObjectRef")
    return data.hex()
