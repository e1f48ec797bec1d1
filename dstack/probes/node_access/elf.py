"""The sections of a 64-bit ELF file by name, as far as Ray's library needs: pyelftools takes 0.06 s to load.

The structs are those of ``elf.h``, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import IO, NamedTuple

IDENTITY = b"\x7fELF\x02\x01"
"""How a 64-bit little-endian file begins."""
HEADER = struct.Struct("<16x2HI3QI6H")
SECTION, SEGMENT = struct.Struct("<2I4Q2I2Q"), struct.Struct("<2I6Q")
NOTE = 4
"""The type of a segment with notes."""


class Section(NamedTuple):
    """A section: its name, as an offset into a table of names, and where it is."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Elf:
    """An ELF file. Every method raises ``ValueError``, ``LookupError`` or ``struct.error`` for any other file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        head = self._read(0, HEADER.size)
        if not head.startswith(IDENTITY):
            raise ValueError("no 64-bit ELF file")
        _, _, _, _, segments_at, sections_at, _, _, _, segments, _, sections, names_at = HEADER.unpack(head)
        self._segments = list(SEGMENT.iter_unpack(self._read(segments_at, segments * SEGMENT.size)))
        self.sections = [Section(*one) for one in SECTION.iter_unpack(self._read(sections_at, sections * SECTION.size))]
        names = self.data(self.sections[names_at])
        self._names = [names[one.name : names.index(b"\0", one.name)] for one in self.sections]

    def section(self, name: bytes) -> Section:
        """The section of this name."""
        return self.sections[self._names.index(name)]

    def data(self, section: Section) -> bytes:
        """The content of a section."""
        return self._read(section.offset, section.size)

    def note(self) -> tuple[int, bytes]:
        """The address and the content of the first notes, which have the build id."""
        of_notes: Sequence[int] = next((one for one in self._segments if one[0] == NOTE), ())
        _, _, offset, address, _, size, _, _ = of_notes
        return address, self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("the file is truncated")
        return data
