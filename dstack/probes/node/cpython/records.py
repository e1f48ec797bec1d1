"""Fields of a C struct, unpacked together."""

from __future__ import annotations

import struct
from collections.abc import Sequence

SIZES = {"Q": 8, "q": 8, "i": 4, "I": 4}


class Record:
    """Fields at fixed offsets, each with its format character of :mod:`struct`; little endian."""

    def __init__(self, *fields: tuple[int, str]) -> None:
        order = sorted(range(len(fields)), key=lambda index: fields[index][0])
        layout, end = "<", 0
        for index in order:
            offset, kind = fields[index]
            layout += f"{offset - end}x{kind}"
            end = offset + SIZES[kind]
        self._struct = struct.Struct(layout)
        self._places = [order.index(index) for index in range(len(fields))]
        self.size = end

    def unpack(self, data: bytes, offset: int = 0) -> Sequence[int]:
        """The fields' values, in the order in which they were given."""
        values = self._struct.unpack_from(data, offset)
        return [values[place] for place in self._places]
