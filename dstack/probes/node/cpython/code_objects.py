"""Code objects in another process's memory: function, file, names of locals, and the line of each instruction."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.objects import TYPE, Objects
from dstack.probes.node.thread_stacks import CodePosition

SIZES = {"Q": 8, "q": 8, "i": 4, "I": 4}


class StructFields:
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


MAX_STACK = 1 << 12
CODE_WORDS, MAX_USED = 14, 2_000
"""A code object has the names that it uses in one of its first words (CPython 3.10 to 3.15), and may have so many."""
MAX_TABLE = 1 << 20
MAX_NAME = 4096
"""The longest path that Linux knows."""
NAME_BYTES, TABLE_BYTES = 200, 512
"""The bytes of a name and of a line table that are prefetched with all others; longer ones are read on their own."""
MANY_POSITIONS = 20
"""Of a code object with so many known positions the whole line table is decoded, so that further ones are quick."""
LARGEST_NUMBER = 2**32 - 1
LONGEST_NUMBER = 6
"""The most bytes of a number in a table, of six bits each: enough for a C ``int``."""
NO_LINE, COLUMN, ONE_LINE = 15, 13, 10
"""Kinds of entries in a line table of CPython 3.11 to 3.15; those below give columns on the same line."""


@dataclass(slots=True)
class Code:
    """One code object as it was read; ``mark`` differs if another object takes its address.

    What is decoded on demand, from ``names`` on, is not compared.
    """

    address: int
    mark: tuple[int, ...]
    file: str = ""
    function: str = ""
    qualified: str = ""
    table: bytes = b""
    names: tuple[str, ...] | None = field(default=None, compare=False)
    exceptions: list[tuple[int, int, int]] | None = field(default=None, compare=False)
    positions: dict[tuple[int, str | None], CodePosition] = field(default_factory=dict, compare=False)
    lines: tuple[array[int], array[int]] | None = field(default=None, compare=False)


KnownPositions = dict[tuple[object, ...], dict[tuple[int, str | None], CodePosition]]
"""The positions of code, by all that they depend on, then by instruction, and by a name that is not the code's."""


class CodeObjects:
    """The code objects of one process. Methods raise :class:`UnreadableMemory`.

    ``known`` are those of an earlier sample by address; they are validated before use. ``positions`` are those of equal
    code, also of other processes.
    """

    def __init__(
        self, objects: Objects, known: dict[int, Code] | None = None, positions: KnownPositions | None = None
    ) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._layout = layout = objects.layout
        self._known = {} if known is None else known
        self._positions = {} if positions is None else positions
        self._valid: dict[int, Code | None] = {}
        pointers = (layout.code_file, layout.code_function, layout.code_qualname or layout.code_function)
        fields = [(offset, "Q") for offset in (TYPE, *pointers, layout.code_lines, *layout.code_names)]
        if layout.code_exceptions:
            fields.append((layout.code_exceptions, "Q"))
        fields += [(layout.code_first_line, "i"), (layout.code_stack_size, "i")]
        self._record = StructFields(*fields)
        self._texts: dict[int, str] = {}
        self._locals_counts: dict[int, int] = {}
        self._used_names: dict[int, frozenset[str]] = {}

    def load(self, addresses: Collection[int]) -> None:
        """Read or validate the code objects at these addresses together; other objects are left out."""
        new = [address for address in addresses if address not in self._valid]
        self._memory.prefetch(new, self._record.size)
        unknown: list[Code] = []
        for address in new:
            code = self._valid[address] = self._validated(address)
            if code is not None and code is not self._known.get(address):
                unknown.append(code)
        self._memory.prefetch([at for code in unknown for at in code.mark[1:4]], NAME_BYTES)
        self._memory.prefetch([code.mark[4] for code in unknown], TABLE_BYTES)
        for code in unknown:
            self._read(code)

    def _validated(self, address: int) -> Code | None:
        """The known code object, a new one without its content, or None if there is no code object."""
        try:
            mark = self._record.unpack(self._memory.read(address, self._record.size))
            if not self._objects.is_type(mark[0], "code"):
                return None
        except UnreadableMemory:
            return None
        known = self._known.get(address)
        return known if known is not None and known.mark == mark else Code(address, mark)

    def _read(self, code: Code) -> None:
        try:
            code.file, code.function, code.qualified = map(self._text, code.mark[1:4])
            code.table = self._line_table(code.mark[4])
            content = (self._layout.version, code.file, code.function, code.qualified, code.table, code.mark[-2])
            code.positions = self._positions.setdefault(content, code.positions)
        except UnreadableMemory:
            self._valid[code.address] = None
            return
        self._known[code.address] = code

    def _line_table(self, address: int) -> bytes:
        """A code object's line table; without one that is too large, its frames are shown on line 0."""
        is_too_large = self._objects.size(address, "bytes") > MAX_TABLE
        return b"" if is_too_large else self._objects.data(address, MAX_TABLE)

    def _text(self, address: int) -> str:
        if address not in self._texts:
            self._texts[address] = self._objects.text(address)[:MAX_NAME]
        return self._texts[address]

    def get(self, address: int) -> Code | None:
        """The code object at an address, None where there is none."""
        if address not in self._valid:
            self.load([address])
        return self._valid[address]

    def code(self, address: int) -> Code:
        """The code object at an address."""
        code = self.get(address)
        if code is None:
            raise UnreadableMemory(f"no code object at {address:#x}")
        return code

    def names(self, code: Code) -> tuple[str, ...]:
        """The names of a frame's locals, in their order: those of a closure come last."""
        if code.names is None:
            self.locals_count(code)
            tuples = self._tuples_of_names(code)
            items = [name for one in tuples for name in self._objects.items(one)]
            self._memory.prefetch(items, NAME_BYTES)
            code.names = tuple(map(self._text, items))
        return code.names

    def used_names(self, address: int) -> frozenset[str]:
        """The names that a code object uses, as of attributes and globals: what its tuples of only texts have."""
        if address not in self._used_names:
            code = self.code(address)
            words = self._memory.pointers(code.address, CODE_WORDS)
            tuples = (word for word in words if self._objects.is_a(word, "tuple"))
            self._used_names[address] = frozenset(name for one in tuples for name in self._only_texts(one))
        return self._used_names[address]

    def _only_texts(self, address: int) -> Sequence[str]:
        items = self._objects.items(address)[:MAX_USED]
        self._memory.prefetch(items, NAME_BYTES)
        is_text = all(self._objects.is_a(one, "str") for one in items)
        return [self._text(one) for one in items] if is_text else ()

    def locals_count(self, code: Code) -> int:
        """How many locals a frame has."""
        if code.names is not None:
            return len(code.names)
        if code.address in self._locals_counts:
            return self._locals_counts[code.address]
        count = sum(self._objects.size(one, "tuple") for one in self._tuples_of_names(code))
        if not 0 <= count <= MAX_STACK:
            raise UnreadableMemory(f"a frame of {count} locals")
        self._locals_counts[code.address] = count
        return count

    def _tuples_of_names(self, code: Code) -> Sequence[int]:
        return code.mark[5 : 5 + len(self._layout.code_names)]

    def stack_size(self, code: Code) -> int:
        """The most stack that a frame may need, in words."""
        size = code.mark[-1]
        if not 0 <= size <= MAX_STACK:
            raise UnreadableMemory(f"a frame with a stack of {size}")
        return size

    def blocks_at(self, code: Code, instruction: int) -> int:
        """The number of stack words that are kept if this instruction raises; CPython 3.11 and later."""
        if code.exceptions is None:
            at = 5 + len(self._layout.code_names)
            table = self._objects.data(code.mark[at], MAX_TABLE) if self._layout.code_exceptions else b""
            code.exceptions = exception_table(table)
        return max((depth for start, end, depth in code.exceptions if start <= instruction < end), default=0)

    def position(self, code: Code, instruction: int, qualified: str | None = None) -> CodePosition:
        """The position of an instruction; line 0 where it has none."""
        key = instruction, qualified
        if key not in code.positions:
            line = self._line(code, instruction)
            code.positions[key] = CodePosition(code.file, code.function, qualified or code.qualified, line)
        return code.positions[key]

    def _line(self, code: Code, instruction: int) -> int:
        """The line of an instruction; if the frame has not begun, the first line, as in ``f_lineno``."""
        if instruction < 0:
            return code.mark[-2]
        if len(code.positions) < MANY_POSITIONS:
            entries = self._lines(code)
            return next((line or 0 for start, end, line in entries if start <= instruction < end), 0)
        if code.lines is None:
            code.lines = _all_lines(self._lines(code))
        starts, found = code.lines
        return found[bisect_right(starts, instruction)]

    def _lines(self, code: Code) -> Iterator[tuple[int, int, int | None]]:
        decode = lines_3_10 if self._layout.version == (3, 10) else lines
        return decode(code.table, code.mark[-2])


def _all_lines(entries: Iterator[tuple[int, int, int | None]]) -> tuple[array[int], array[int]]:
    """The instructions at which lines begin, in order, and the line before each of them; 0 for none."""
    starts, found, at = array("q"), array("q", [0]), 0
    for start, end, line in entries:
        starts.append(start)
        found.append(line or 0)
        at = end
    starts.append(at)
    found.append(0)
    return starts, found


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
    """First instruction, the one after the last, and their line, as ``co_lines()`` gives them; CPython 3.11 to 3.15.

    The first byte of an entry has the kind and the number of code units; only first bytes have the highest bit set.
    """
    start, line, at, size = 0, first, 0, len(table)
    while at < size:
        byte = table[at]
        kind, end = byte >> 3 & 15, start + 2 * ((byte & 7) + 1)
        at += 1
        if kind < ONE_LINE:
            at += 1
        elif kind < COLUMN:
            line += kind - ONE_LINE
            at += 2
        elif kind != NO_LINE:
            line += _signed(table, at)
        yield start, end, None if kind == NO_LINE else line
        start = end
        while at < size and not table[at] & 0x80:
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
    """The same for CPython 3.10: pairs of bytes, the length of the instructions and the difference of the line."""
    start, line = 0, first
    for length, difference in zip(table[::2], table[1::2], strict=False):
        if difference == 0x80:
            yield start, start + length, None
        else:
            line += difference - 256 if difference > 0x80 else difference
            if length:
                yield start, start + length, line
        start += length
