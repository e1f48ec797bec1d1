"""The base of all calibration: searches of the reader's own memory for values that are known."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from dstack.probes.node.cpython.memory import ProcessMemory
from dstack.probes.node.cpython.objects import reference

HEAD = 16
"""An object's reference count and type: no field that is searched for is there."""


class Search:
    """Searches of this process. Methods raise ``LookupError`` or ``ValueError`` where a value is not found."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory

    def _find(self, address: int, size: int, value: int) -> int:
        """The offset of the word among these bytes that has this value."""
        return 8 * self._memory.mapped_words(address, size).index(value)

    def _in(self, whole: object, part: object) -> int:
        """The offset in an object of its pointer to another one, which is not its type."""
        return HEAD + self._find(id(whole) + HEAD, type(whole).__basicsize__ - HEAD, id(part))

    def _references(self, address: int, size: int) -> tuple[int, ...]:
        """The words of a frame, those that are references without their flags."""
        return tuple(map(reference, self._memory.mapped_words(address, size)))

    def _number_in(self, copies: Mapping[int, object]) -> int:
        """The offset of a 32-bit number in objects of one type that differ in it; the keys are its values."""
        count = min(type(one).__basicsize__ for one in copies.values()) // 4
        rows = [struct.unpack(f"<{count}i", self._memory.read(id(one), 4 * count)) for one in copies.values()]
        return 4 * list(zip(*rows, strict=True)).index(tuple(copies), HEAD // 4)
