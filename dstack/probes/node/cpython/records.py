"""Fields of a C struct, unpacked together."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter

SIZES = {"Q": 8, "q": 8, "i": 4, "I": 4}


class Record:
    """At least two fields at fixed offsets, each with its format character of :mod:`struct`; little endian.

    The same field may be given more than once; fields do not overlap otherwise.
    """

    def __init__(self, *fields: tuple[int, str]) -> None:
        order = sorted(set(fields))
        layout, end = "<", 0
        for offset, kind in order:
            layout += f"{offset - end}x{kind}"
            end = offset + SIZES[kind]
        self._struct = struct.Struct(layout)
        self._ordered: Callable[[tuple[int, ...]], tuple[int, ...]] = itemgetter(*map(order.index, fields))
        self.size = end

    def unpack(self, data: bytes, offset: int = 0) -> tuple[int, ...]:
        """The fields' values, in the order in which they were given."""
        return self._ordered(self._struct.unpack_from(data, offset))
