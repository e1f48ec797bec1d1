"""Code objects in another process's memory: whose code it is, its names, and which instruction stands on which line."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.probes.node.cpython.cached_property import on_demand
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects

MAX_STACK = 1 << 12
MAX_TABLE = 1 << 18
LARGEST_NUMBER = 2**32 - 1
LONGEST_NUMBER = 6
"""Bytes of a number in a table, of six bits each: as much as an ``int`` may take."""
NO_LINE, LONG, COLUMN, ONE_LINE = 15, 14, 13, 10
"""Kinds of entries in a line table of CPython 3.11 to 3.14; those below tell columns on the same line."""


class Code:
    """One code object; what is not asked for is not read. Every property raises :class:`Unreadable`."""

    def __init__(self, objects: Objects, layout: Layout, address: int) -> None:
        self._objects = objects
        self._layout = layout
        self.address = address

    def _pointer(self, offset: int) -> int:
        return self._objects.memory.pointer(self.address + offset)

    @on_demand
    def file(self) -> str:
        """The file's path."""
        return self._objects.text(self._pointer(self._layout.code_file))

    @on_demand
    def function(self) -> str:
        """The function's plain name."""
        return self._objects.text(self._pointer(self._layout.code_function))

    @on_demand
    def qualified(self) -> str:
        """The function's qualified name; on 3.10, where code has none, the plain one."""
        offset = self._layout.coroutines.code_qualname
        return self._objects.text(self._pointer(offset)) if offset else self.function

    @on_demand
    def _names(self) -> tuple[int, ...]:
        tuples = [self._pointer(offset) for offset in self._layout.code_names]
        count = sum(self._objects.size(one, "tuple") for one in tuples)
        if not 0 <= count <= MAX_STACK:
            raise Unreadable(f"a frame of {count} locals")
        return tuple(name for one in tuples for name in self._objects.items(one))

    @on_demand
    def names(self) -> tuple[str, ...]:
        """The names of a frame's locals, in their order: those of a closure come last."""
        return tuple(map(self._objects.text, self._names))

    @on_demand
    def locals(self) -> int:
        """How many locals a frame has."""
        return len(self._names)

    @on_demand
    def stack_size(self) -> int:
        """How much stack a frame may need, in words."""
        size = self._objects.memory.int32(self.address + self._layout.code_stack_size)
        if not 0 <= size <= MAX_STACK:
            raise Unreadable(f"a frame with a stack of {size}")
        return size

    @on_demand
    def _exceptions(self) -> list[tuple[int, int, int]]:
        offset = self._layout.code_exceptions
        return exception_table(self._objects.data(self._pointer(offset), MAX_TABLE)) if offset else []

    @on_demand
    def _lines(self) -> list[tuple[int, int, int | None]]:
        first = self._objects.memory.int32(self.address + self._layout.coroutines.code_first_line)
        table = self._objects.data(self._pointer(self._layout.coroutines.code_lines))
        return list(lines_3_10(table, first) if self._layout.version == (3, 10) else lines(table, first))

    def blocks_at(self, instruction: int) -> int:
        """How much of the stack is kept where this instruction would raise."""
        return max((depth for start, end, depth in self._exceptions if start <= instruction < end), default=0)

    def line_at(self, instruction: int) -> int:
        """The line of an instruction, 0 where it has none."""
        return next((line or 0 for start, end, line in self._lines if start <= instruction < end), 0)


def exception_table(table: bytes) -> list[tuple[int, int, int]]:
    """Entries of a code object's table: first instruction, the one after the last, and the depth of the stack.

    From CPython 3.11 on: numbers of six bits a byte, highest first, and a bit that says that more follow.
    """
    numbers, value = [], 0
    for byte in table:
        value = (value << 6 | byte & 0x3F) & LARGEST_NUMBER
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    rows = zip(*[iter(numbers)] * 4, strict=False)
    return [(2 * start, 2 * (start + length), depth >> 1) for start, length, _, depth in rows]


def lines(table: bytes, first: int) -> Iterator[tuple[int, int, int | None]]:
    """First instruction, the one after the last, and their line, as ``co_lines()`` gives them; CPython 3.11 to 3.14.

    An entry begins with a byte of its own, the only ones with the highest bit: kind and number of code units.
    """
    start, line, at = 0, first, 0
    while at < len(table):
        kind, end = table[at] >> 3 & 15, start + 2 * ((table[at] & 7) + 1)
        at += 1
        if kind in (LONG, COLUMN):
            line += _signed(table, at)
        elif ONE_LINE <= kind < COLUMN:
            line += kind - ONE_LINE
        yield start, end, None if kind == NO_LINE else line
        start = end
        while at < len(table) and not table[at] & 0x80:
            at += 1


def _signed(table: bytes, at: int) -> int:
    """A number of six bits a byte, lowest first, whose lowest bit is its sign."""
    value = shift = 0
    for byte in table[at : at + LONGEST_NUMBER]:
        value |= (byte & 0x3F) << shift
        shift += 6
        if not byte & 0x40:
            break
    return -(value >> 1) if value & 1 else value >> 1


def lines_3_10(table: bytes, first: int) -> Iterator[tuple[int, int, int | None]]:
    """The same for CPython 3.10: pairs of bytes, how far the instructions reach and by how much the line differs."""
    start, line = 0, first
    for length, difference in zip(table[::2], table[1::2], strict=False):
        if difference == 0x80:
            yield start, start + length, None
        else:
            line += difference - 256 if difference > 0x80 else difference
            if length:
                yield start, start + length, line
        start += length
