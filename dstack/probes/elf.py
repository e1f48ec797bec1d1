"""Sections of a 64-bit little-endian ELF file by name: a fast reader for large libraries, on the standard library only.

For what is asked of every Python that a process may run, see :mod:`dstack.probes.foreign_pythons`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_IDENTITY = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
SYMBOL = struct.Struct("<I2BH2Q")
"""A symbol: the place of its name, type and visibility, section, value, size."""


@dataclass(frozen=True)
class Section:
    """A section; ``address`` is where it is in memory, ``link`` the number of the section it refers to."""

    name: int
    kind: int
    address: int
    offset: int
    size: int
    link: int


class ElfFile:
    """A mapped ELF file; a context manager. ``OSError``, ``ValueError`` and ``struct.error`` if it is none."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        identity, *_, sections_at, _, _, _, _, size, count, names = _HEADER.unpack_from(self._data)
        if not identity.startswith(_IDENTITY) or size != _SECTION.size:
            raise ValueError("not a 64-bit little-endian ELF file")
        self._sections = [self._section(sections_at + size * index) for index in range(count)]
        self._names = self._sections[names]

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._data.close()

    def section(self, name: str) -> Section:
        """The section of that name. Raises ``LookupError``."""
        wanted = name.encode() + b"\0"
        for one in self._sections:
            at = self._names.offset + one.name
            if self._data[at : at + len(wanted)] == wanted:
                return one
        raise LookupError(name)

    def contents(self, section: Section) -> bytes:
        """The section's bytes."""
        return self._data[section.offset : section.offset + section.size]

    def symbol(self, table: str, name: bytes) -> int:
        """The value of a symbol of that table. Raises ``LookupError`` or ``ValueError``.

        Found by its name's place in the string table: a walk over 100,000 symbols takes seconds.
        """
        section = self.section(table)
        at_name = struct.pack("<I", self.contents(self._sections[section.link]).index(b"\0" + name + b"\0") + 1)
        symbols = self.contents(section)
        at = symbols.index(at_name)
        while at % SYMBOL.size:
            at = symbols.index(at_name, at + 1)
        return int(SYMBOL.unpack_from(symbols, at)[4])

    def _section(self, at: int) -> Section:
        name, kind, _, address, offset, size, link, *_ = _SECTION.unpack_from(self._data, at)
        return Section(name, kind, address, offset, size, link)
