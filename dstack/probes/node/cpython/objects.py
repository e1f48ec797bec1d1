"""Python objects in another process's memory.

Every object is checked by the name of its type before use, and every size is bounded. So memory that has changed, or
was never such an object, raises :class:`UnreadableMemory`. The offsets that are numbers here are the same in CPython
3.10 to 3.15 with the GIL, on x86-64 and aarch64; those that differ are in :mod:`dstack.probes.node.cpython.layouts`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Iterator

from dstack.probes.node.cpython.hashes import Hashes
from dstack.probes.node.cpython.layouts import CPythonLayout
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory

TYPE, SIZE = 8, 16
BASIC_SIZE, TYPE_NAME, TYPE_FLAGS, MEMBERS, BASE, TYPE_DICT, DICT_OFFSET = 32, 24, 168, 240, 256, 264, 288
MEMBER_BYTES, MEMBER_OFFSET = 40, 16
"""The size of a ``PyMemberDef``, which begins with a name, and where it has the offset in the object."""
MAX_MEMBERS = 64
LIST_ITEMS = 24
TAG_BITS = 3
"""From CPython 3.14 on: flags in a reference that a frame holds; both are set in a number that refers to no object."""
REFERENCES = 2**32 - 1
"""From CPython 3.14 on: the bits of an object's first word that count references; its flags are above."""
DICT_KEYS, DICT_VALUES = 32, 40
SET_MASK, SET_TABLE = 32, 40
REFERENT = 16
"""Where a weak reference has its object; CPython 3.10 to 3.15."""
REMOVED = 2**64 - 1
"""The hash in an entry of a set whose item was removed: -1, which no object has."""
BOUND_TO = 24
CELL_VALUE = 16
"""The object of a bound method, also of a built-in one."""
BYTES_DATA, FLOAT_VALUE, INT_DIGITS = 32, 16, 24
INT_HEAD = "<8xQqI"
"""How an int begins: its type, its size with its sign, and its lowest 30 bits."""
TEXT_STATE = 32
TEXT_HEAD = "<8xQq8xI"
"""How a string begins: its type, its length and its state."""
TEXT_HEAD_BYTES = struct.calcsize(TEXT_HEAD)
TEXT_WIDTHS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}

INLINE_VALUES, MANAGED_DICT, HEAP_TYPE = 1 << 2, 1 << 4, 1 << 9
"""Type flags: from CPython 3.13, from 3.11, and of all types but those that C defines statically."""
VALUES_3_11, DICT = -32, -24
"""The offsets, before an object with a managed dict, of its values (3.11 only) and its dict."""

EMPTY, PERTURB_SHIFT = -1, 5
"""The index of no entry in a dict, and by how many bits of a hash each further step of a search depends on more of it.
In ``Objects/dictobject.c``."""
MAX_PROBES = 1_000
MAX_ITEMS = 1 << 20
DEQUE_BLOCK = 64
"""The items in each block of a deque, between pointers to the previous and the next block."""
MAX_ENTRIES, MAX_ATTRIBUTES = 1 << 16, 1 << 10
"""The most entries of a dict, and of a dict with an instance's attributes."""
MAX_BASES = 50
MAX_TEXT = 1 << 16
MAX_NAME = 1 << 10
MAX_DATA = 1 << 20
MAX_DIGITS = 4
LOCK_SEMAPHORE = 16
"""The offset in a lock of the pointer to its waiters' semaphore, or of the byte that they are parked at."""


def reference(word: int) -> int:
    """The address of the object that a word of a frame refers to, without the flags in it (from CPython 3.14 on)."""
    return word & ~TAG_BITS


class Objects:
    """The Python objects of one process, which has this ``layout``. Every method raises :class:`UnreadableMemory`.

    With its ``hashes``, a name is found in a dict as CPython finds it, without reading all names.
    """

    def __init__(self, memory: ProcessMemory, layout: CPythonLayout, hashes: Hashes | None = None) -> None:
        self.memory = memory
        self.layout = layout
        self.hashes = hashes
        self._version = layout.version
        self._type_names: dict[int, str] = {}
        self._names: dict[int, list[str]] = {}
        self._base_names: dict[int, tuple[str, ...]] = {}
        self._slots: dict[int, dict[str, int]] = {}
        self._flags: dict[int, int] = {}
        self._key_counts: dict[int, int] = {}

    def type_name(self, address: int) -> str:
        """The type's name as C has it: ``list``, ``ray._raylet.ObjectRef``; of a Python class without its module."""
        return self._name_of_type(self.memory.pointer(address + TYPE))

    def _name_of_type(self, kind: int) -> str:
        name = self._type_names.get(kind)
        if name is None:
            name = self._type_names[kind] = self.memory.c_string(self.memory.pointer(kind + TYPE_NAME))
        return name

    def is_type(self, kind: int, name: str) -> bool:
        """Whether there is a type of this name."""
        return self._name_of_type(kind) == name

    def is_a(self, address: int, *names: str) -> bool:
        """Whether the address has an object of one of these types; False if it has no object."""
        try:
            return bool(address) and not address % 8 and self.type_name(address) in names
        except UnreadableMemory:
            return False

    def is_kind_of(self, address: int, name: str) -> bool:
        """Whether there is an object of this type or of one that inherits from it.

        A type that is written in C or C++ is found with and without its module.
        """
        try:
            names = self.base_names(self.memory.pointer(address + TYPE)) if address and not address % 8 else ()
        except UnreadableMemory:
            return False
        return name in names or any(one.endswith(f".{name}") for one in names)

    def base_names(self, kind: int) -> tuple[str, ...]:
        """The names of a type and those it inherits from, as far as the first of several goes."""
        if kind not in self._base_names:
            names: list[str] = []
            one = kind
            while one and len(names) < MAX_BASES:
                names.append(self.memory.c_string(self.memory.pointer(one + TYPE_NAME)))
                one = self.memory.pointer(one + BASE)
            self._base_names[kind] = tuple(names)
        return self._base_names[kind]

    def content(self, address: int) -> int:
        """The object in the cell at an address, 0 if the cell is empty; the address itself if it is no cell."""
        return self.memory.pointer(address + CELL_VALUE) if self.is_a(address, "cell") else address

    def expect(self, address: int, *names: str) -> str:
        """The object's type, which must be one of these."""
        name = self.type_name(address)
        if name not in names:
            raise UnreadableMemory(f"a {name} where a {' or '.join(names)} was expected")
        return name

    def size(self, address: int, *names: str) -> int:
        """The size field of an object of one of these types."""
        self.expect(address, *names)
        return self.memory.int64(address + SIZE)

    def items(self, address: int, first: int | None = None) -> tuple[int, ...]:
        """Addresses of the items of a live list or tuple, or of the ``first`` ones, however many it has."""
        name = self.expect(address, "list", "tuple")
        refcount, _, size = struct.unpack("<qQq", self.memory.read(address, 24))
        size = size if first is None else min(size, first)
        refcount = refcount & REFERENCES if self._version >= (3, 14) else refcount
        if refcount <= 0 or not 0 <= size <= MAX_ITEMS:
            raise UnreadableMemory(f"a {name} of {size} items and {refcount} references")
        is_list = name == "list"
        start = self.memory.pointer(address + LIST_ITEMS) if is_list else address + self.layout.tuple_items
        return self.memory.pointers(start, size)

    def deque_items(self, address: int) -> Iterator[int]:
        """Addresses of a deque's items, from the left: its blocks are linked."""
        self.expect(address, "collections.deque")
        count, block, _, index = self.memory.pointers(address + SIZE, 4)
        if count > MAX_ITEMS or index >= DEQUE_BLOCK:
            raise UnreadableMemory(f"a deque of {count} items from {index} on")
        while count > 0:
            here = self.memory.pointers(block + 8 + 8 * index, min(count, DEQUE_BLOCK - index))
            yield from here
            count, index = count - len(here), 0
            block = self.memory.pointer(block + 8 + 8 * DEQUE_BLOCK)

    def set_items(self, address: int) -> tuple[int, ...]:
        """Addresses of a set's items, lowest first."""
        self.expect(address, "set", "frozenset")
        mask, table = self.memory.pointers(address + SET_MASK, 2)
        if mask > MAX_ITEMS:
            raise UnreadableMemory(f"a set of {mask} places")
        words = self.memory.pointers(table, 2 * (mask + 1))
        entries = zip(words[::2], words[1::2], strict=True)
        return tuple(sorted(key for key, hashed in entries if key and hashed != REMOVED))

    def weak_items(self, address: int, most: int | None = None) -> Iterator[int]:
        """Addresses of the objects that a ``WeakSet`` refers to, of the ``most`` first ones; 0 for one that is gone."""
        for reference in self.set_items(self.find_attribute(address, "data"))[:most]:
            with contextlib.suppress(UnreadableMemory):
                yield self.memory.pointer(reference + REFERENT)

    def text(self, address: int, first: int | None = None) -> str:
        """A string, or its ``first`` characters, however long it is."""
        kind, length, state = self.memory.unpack(TEXT_HEAD, address)
        length = length if first is None else min(length, first)
        if self._name_of_type(kind) != "str":
            raise UnreadableMemory(f"a {self._name_of_type(kind)} where a str was expected")
        width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or width not in TEXT_WIDTHS or not 0 <= length <= MAX_TEXT:
            raise UnreadableMemory(f"a string of {length} characters in {width} bytes each")
        ascii_header, compact_header = self.layout.text_headers
        start = address + (ascii_header if is_ascii else compact_header)
        return self.memory.read(start, length * width).decode(TEXT_WIDTHS[width], "replace")

    def data(self, address: int, longest: int = MAX_DATA) -> bytes:
        """A bytes object's content."""
        size = self.size(address, "bytes")
        if not 0 <= size <= longest:
            raise UnreadableMemory(f"{size} bytes")
        return self.memory.read(address + BYTES_DATA, size)

    def number(self, address: int) -> float | None:
        """An int or a float; None for None."""
        name = self.expect(address, "int", "float", "NoneType")
        if name == "float":
            return float(struct.unpack("<d", self.memory.read(address + FLOAT_VALUE, 8))[0])
        return self._integer(address) if name == "int" else None

    def counts(self, addresses: Collection[int]) -> list[int]:
        """The values of many ints from 0 on below 2**30, which is quicker than one by one."""
        self.memory.prefetch(addresses, INT_DIGITS + 4)
        found = []
        for address in addresses:
            kind, size, digit = self.memory.unpack(INT_HEAD, address)
            digits, is_negative = (size >> 3, size & 3 == 2) if self._version >= (3, 12) else (size, False)
            if self._name_of_type(kind) != "int" or digits not in (0, 1) or is_negative:
                raise UnreadableMemory("not a small int that is 0 or more")
            found.append(digit if digits or self._version >= (3, 12) else 0)
        return found

    def truth(self, address: int) -> bool | None:
        """A bool's value; None for anything else."""
        return bool(self._integer(address)) if self.is_a(address, "bool") else None

    def _integer(self, address: int) -> int:
        size = self.memory.int64(address + SIZE)
        if self._version >= (3, 12):  # the lowest three bits are the sign
            count, is_negative = size >> 3, size & 3 == 2
        else:
            count, is_negative = abs(size), size < 0
        if not 0 <= count <= MAX_DIGITS:
            raise UnreadableMemory(f"an int of {count} digits")
        digits = struct.unpack(f"<{count}I", self.memory.read(address + INT_DIGITS, 4 * count))
        value: int = sum(digit << 30 * place for place, digit in enumerate(digits))
        return -value if is_negative else value

    def attribute(self, address: int, name: str) -> int:
        """The address of one of an instance's attributes. Raises :class:`UnreadableMemory` where there is none."""
        found = self.find_attribute(address, name)
        if not found:
            raise UnreadableMemory(f"a {self.type_name(address)} without {name}")
        return found

    def find_attribute(self, address: int, name: str) -> int:
        """The address of one of an instance's attributes, 0 where there is none."""
        return self._value_of(*self._attribute_table(address), name)

    def value_of(self, address: int, name: str) -> int:
        """The address of a dict's value under a name, 0 where there is none."""
        return self._value_of(*self._table(address), name)

    def _value_of(self, keys: int, values: int, name: str) -> int:
        if self.hashes is None or not keys:
            return self._named(keys, values).get(name, 0)
        start, _, width = self._keys(keys)
        place = self._place(keys, name, self.hashes.of(name))
        if place is None:
            return 0
        return self.memory.pointer(values + 8 * place if values else start + 8 * (width * place + width - 1))

    def _place(self, keys: int, name: str, hashed: int) -> int | None:
        """The position of a name in a dict, which its hash leads to; None where there is none."""
        start, count, width = self._keys(keys)
        indices = keys + (40 if self._version == (3, 10) else 32)
        size = self.memory.int64(keys + 8) if self._version == (3, 10) else 1 << self.memory.read(keys + 8, 1)[0]
        index_bytes = (start - indices) // size
        slot, perturbed = hashed % size, hashed
        for _ in range(min(size, MAX_PROBES)):
            index = self.memory.read(indices + index_bytes * slot, index_bytes)
            place = int.from_bytes(index, "little", signed=True)
            if place == EMPTY:
                return None
            if 0 <= place < count and self._is_text(self.memory.pointer(start + 8 * (width * (place + 1) - 2)), name):
                return place
            perturbed >>= PERTURB_SHIFT
            slot = (5 * slot + perturbed + 1) % size
        raise UnreadableMemory("a dict in which a search does not end")

    def attributes(self, address: int) -> dict[str, int]:
        """The addresses of an instance's attributes, by name."""
        return self._named(*self._attribute_table(address))

    def slots(self, address: int) -> dict[str, int]:
        """The addresses of the values in an instance's slots, by name; 0 for an empty one."""
        kind = self.memory.pointer(address + TYPE)
        if kind not in self._slots:
            self._slots[kind] = dict(self._members(kind))
        return {name: self.memory.pointer(address + offset) for name, offset in self._slots[kind].items()}

    def _members(self, kind: int) -> Iterator[tuple[str, int]]:
        """The names and offsets of the slots of a class in Python and those it inherits from."""
        for _ in range(MAX_BASES):
            if not kind:
                return
            members = self.memory.pointer(kind + MEMBERS)
            for member in range(members, members + MAX_MEMBERS * MEMBER_BYTES, MEMBER_BYTES) if members else ():
                name, *_, offset = self.memory.pointers(member, MEMBER_OFFSET // 8 + 1)
                if not name:
                    break
                yield self.memory.c_string(name), offset
            kind = self.memory.pointer(kind + BASE)

    def class_attributes(self, address: int) -> dict[str, int]:
        """The addresses of what an instance has from its class in Python, by name; nothing of classes in C."""
        found: dict[str, int] = {}
        kind = self.memory.pointer(address + TYPE)
        for _ in range(MAX_BASES):
            if not kind or not self.memory.pointer(kind + TYPE_FLAGS) & HEAP_TYPE:
                break
            found = {**self.named(self.memory.pointer(kind + TYPE_DICT)), **found}
            kind = self.memory.pointer(kind + BASE)
        return found

    def class_version(self, address: int) -> tuple[int, int, int]:
        """The class of an instance, its dict, and the number of entries of that."""
        kind = self.memory.pointer(address + TYPE)
        table = self.memory.pointer(kind + TYPE_DICT)
        return kind, table, self.size(table, "dict")

    def attribute_values(self, address: int) -> tuple[int, ...]:
        """The addresses of an instance's attributes, without their names, which take longer to read."""
        keys, values = self._attribute_table(address)
        if not keys:
            return ()
        if not values:
            return tuple(value for _, value in self._entries(keys, MAX_ATTRIBUTES))
        if keys not in self._key_counts:
            self._key_counts[keys] = len(self._entries(keys, MAX_ATTRIBUTES))
        return self.memory.pointers(values, self._key_counts[keys])

    def _attribute_table(self, address: int) -> tuple[int, int]:
        """The addresses of the names of an instance's attributes, and of the values if stored apart, else 0."""
        kind = self.memory.pointer(address + TYPE)
        flags = self._flags.get(kind)
        if flags is None:
            flags = self._flags[kind] = self.memory.pointer(kind + TYPE_FLAGS)
        cached_keys = self.layout.cached_keys
        if cached_keys and flags & MANAGED_DICT:
            values, where = self._managed(address, kind, flags)
            return (self.memory.pointer(kind + cached_keys), values) if values else self._table(where)
        offset = self.memory.int64(kind + DICT_OFFSET)
        if not 0 < offset <= MAX_TEXT:
            raise UnreadableMemory(f"a {self.type_name(address)} has no attributes of its own")
        return self._table(self.memory.pointer(address + offset))

    def _managed(self, address: int, kind: int, flags: int) -> tuple[int, int]:
        """The address of values without a dict, else 0; and that of the dict, else 0."""
        if self._version == (3, 11):
            values, where = self.memory.pointers(address + VALUES_3_11, 2)
            return values, where
        where = self.memory.pointer(address + DICT)
        if self._version == (3, 12):
            return (where + 1, 0) if where & 1 else (0, where)
        inline = address + self.memory.int64(kind + BASIC_SIZE)
        is_valid = not where and flags & INLINE_VALUES and self.memory.read(inline + 3, 1) != b"\0"
        return (inline + 8 if is_valid else 0), where

    def named(self, address: int) -> dict[str, int]:
        """The addresses of a dict's values, by name; nothing where there is no dict."""
        return self._named(*self._table(address))

    def _table(self, address: int) -> tuple[int, int]:
        """The addresses of a dict's names, and of its values if stored apart, else 0; both 0 without a dict."""
        if not address:
            return 0, 0
        self.expect(address, "dict")
        return self._parts(address)

    def _parts(self, address: int) -> tuple[int, int]:
        keys, values = self.memory.pointers(address + DICT_KEYS, 2)
        return keys, values + 8 if values and self._version >= (3, 13) else values

    def first_entries(self, address: int, first: int) -> list[int]:
        """The addresses of the values of a dict's first entries, and of their keys unless all keys are strings.

        The caller must have checked that the type of the object is ``dict`` or a subtype.
        """
        keys, values = self._parts(address)
        start, count, width = self._keys(keys)
        count = min(max(0, count), first)
        if values:
            return [value for value in self.memory.pointers(values, count) if value]
        words = self.memory.pointers(start, width * count)
        found = [value for value in words[width - 1 :: width] if value]
        return found if width == 2 else [*found, *words[1::width]]

    def first_named(self, address: int, first: int) -> dict[str, int]:
        """The addresses of the values of a dict's first entries, by name; none where it shares its keys."""
        self.expect(address, "dict")
        keys, values = self._parts(address)
        start, count, width = self._keys(keys)
        words = () if values else self.memory.pointers(start, width * min(max(0, count), first))
        pairs = zip(words[width - 2 :: width], words[width - 1 :: width], strict=True)
        return {self._name(key): value for key, value in pairs if key and value}

    def entries(self, address: int) -> list[tuple[int, int]]:
        """The addresses of the keys and values of a dict, also of an ordered one, or one with a default."""
        self.expect(address, "dict", "collections.OrderedDict", "collections.defaultdict")
        keys, values = self.memory.pointers(address + DICT_KEYS, 2)
        if not self.memory.int64(address + SIZE):
            return []  # which on CPython 3.10 may seem to share its keys
        if values:
            raise UnreadableMemory("a dict that shares its keys")
        return [(key, value) for key, value in self._entries(keys, MAX_ENTRIES) if key and value]

    def places_of(self, address: int, names: Collection[str]) -> dict[str, int]:
        """The positions of these names in a dict, without missing ones: one search through a large dict."""
        self.expect(address, "dict")
        keys, _ = self.memory.pointers(address + DICT_KEYS, 2)
        lengths = set(map(len, names))
        found: dict[str, int] = {}
        with self.memory.temporary():
            entries = self._entries(keys, MAX_ENTRIES)
            self.memory.prefetch((key for key, value in entries if value), TEXT_HEAD_BYTES)
            for place, (key, value) in enumerate(entries):
                with contextlib.suppress(UnreadableMemory):
                    if value and self.memory.unpack(TEXT_HEAD, key)[1] in lengths and (text := self.text(key)) in names:
                        found[text] = place
        return found

    def value_at(self, address: int, place: int, name: str) -> int:
        """The address of the value at a position of a dict, 0 if the position has another name now."""
        self.expect(address, "dict")
        keys, values = self.memory.pointers(address + DICT_KEYS, 2)
        start, count, width = self._keys(keys)
        if values or not 0 <= place < count:
            return 0
        words = self.memory.pointers(start + 8 * width * place, width)
        return words[-1] if words[-1] and self._is_text(words[-2], name) else 0

    def _is_text(self, address: int, expected: str) -> bool:
        """Whether there is a string with this content."""
        try:
            _, length, _ = self.memory.unpack(TEXT_HEAD, address)
            return length == len(expected) and self.text(address) == expected
        except UnreadableMemory:
            return False

    def _named(self, keys: int, values: int) -> dict[str, int]:
        """Values by name; with ``values`` they are stored there, in the order of the names."""
        if not keys:
            return {}
        if values:
            names = self._shared_names(keys)
            found = zip(names, self.memory.pointers(values, len(names)), strict=True)
        else:
            found = zip(*self._names_and_values(keys), strict=True)
        return {name: value for name, value in found if name and value}

    def _shared_names(self, keys: int) -> list[str]:
        """The names of attributes that all instances of a type share, read once."""
        if keys not in self._names:
            self._names[keys], _ = self._names_and_values(keys)
        return self._names[keys]

    def _names_and_values(self, keys: int) -> tuple[list[str], list[int]]:
        entries = self._entries(keys, MAX_ATTRIBUTES)
        return [self._name(key) for key, _ in entries], [value for _, value in entries]

    def _name(self, key: int) -> str:
        """A key that is a name; empty where it is no string, or too long for a name."""
        return self.text(key) if self.is_a(key, "str") and self.size(key, "str") <= MAX_NAME else ""

    def _entries(self, keys: int, most: int) -> list[tuple[int, int]]:
        """Key and value of a dict's entries, in order. Raises :class:`UnreadableMemory` for more than ``most``."""
        start, count, width = self._keys(keys)
        if not 0 <= count <= most:
            raise UnreadableMemory(f"a dict of {count} names")
        words = self.memory.pointers(start, width * count)
        return list(zip(words[width - 2 :: width], words[width - 1 :: width], strict=True))

    def _keys(self, keys: int) -> tuple[int, int, int]:
        """The address of the entries, their number and their size in words: two where all keys are strings."""
        if self._version == (3, 10):
            return self._keys_3_10(keys)
        index_bytes_log2, kind = self.memory.read(keys + 9, 2)
        if index_bytes_log2 > 32:
            raise UnreadableMemory("no keys of a dict")
        return keys + 32 + (1 << index_bytes_log2), self.memory.int64(keys + 24), 3 if kind == 0 else 2

    def _keys_3_10(self, keys: int) -> tuple[int, int, int]:
        size, count = self.memory.int64(keys + 8), self.memory.int64(keys + 32)
        if not 0 < size <= 1 << 32:
            raise UnreadableMemory("no keys of a dict")
        index_bytes = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4
        return keys + 40 + index_bytes * size, count, 3
