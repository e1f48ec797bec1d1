"""The offsets that a process of CPython 3.13 or later states itself: ``_Py_DebugOffsets``, in ``_PyRuntime``.

They describe the target's own build, so they take precedence over the table's. The struct differs between minor
versions, so an unknown version is rejected. It lacks futures, functions, contexts, locks, queues, a code object's stack
size and exception table, and the qualified name of a generator; before 3.15 also keys cached by types, and on 3.13
generators. Seen on CPython 3.13.0, 3.13.15, 3.14.8 and 3.15.0.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from dstack.probes.node.cpython.layouts import LAYOUTS, CPythonLayout, Version
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.objects import (
    BASIC_SIZE,
    BYTES_DATA,
    DICT_KEYS,
    DICT_OFFSET,
    DICT_VALUES,
    FLOAT_VALUE,
    INT_DIGITS,
    LIST_ITEMS,
    SET_MASK,
    SET_TABLE,
    SIZE,
    TEXT_STATE,
    TYPE,
    TYPE_FLAGS,
    TYPE_NAME,
)
from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import ForeignPython, UnreadablePython

FIRST_VERSION = (3, 13)
"""The first version that has debug offsets."""
HEADER = "<8sQQ"
HEADER_SIZE = struct.calcsize(HEADER)
COOKIE = b"xdebugpy"
PYTHON_FILE = re.compile(r".*/(python[\d.]+[td]*|libpython3[\d.]+[td]*\.so[\d.]*)")
"""The program or library that has ``_PyRuntime`` among its data; ``t`` is free-threaded, ``d`` for debugging."""
GLIBC = "/libc.so.6"
CANDIDATE = 0xC
"""The release level, in a version number, from which on layouts do not change any more."""
HEADER_OF_3 = re.compile(COOKIE + rb"...\x03\x00{4}[\x00\x01]\x00{7}", re.DOTALL)
"""A header of any version of Python 3: the cookie also occurs alone, in code that compares it."""
WITHOUT_GLIBC = "it runs Python without glibc, which dstack cannot read"
MAX_STRUCT = 1 << 24
SIZES = ("size", "generation_stats_size")
"""The fields that are no offsets in the struct of their group."""

_STRUCT_3_13 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state
    gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
thread_state size prev next interp current_frame thread_id native_thread_id datastack_chunk status
interpreter_frame size previous executable instr_ptr localsplus owner
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds co_code_adaptive
pyobject size ob_type
type_object size tp_name tp_repr tp_flags
tuple_object size ob_item ob_size
list_object size ob_item ob_size
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size
gc size collecting
"""
_STRUCT_3_14 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil
    gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
    code_object_generation tlbc_generation
thread_state size prev next interp current_frame thread_id native_thread_id datastack_chunk status
interpreter_frame size previous executable instr_ptr localsplus owner stackpointer tlbc_index
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
    co_code_adaptive co_tlbc
pyobject size ob_type
type_object size tp_name tp_repr tp_flags
tuple_object size ob_item ob_size
list_object size ob_item ob_size
set_object size used table mask
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size
gc size collecting
gen_object size gi_name gi_iframe gi_frame_state
"""
_STRUCT_3_15 = """
runtime_state size finalizing interpreters_head
interpreter_state size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil
    gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
    code_object_generation tlbc_generation
thread_state size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq thread_id
    native_thread_id datastack_chunk status holds_gil gil_requested current_exception exc_state
err_stackitem exc_value
interpreter_frame size previous executable instr_ptr localsplus owner stackpointer tlbc_index
code_object size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds
    co_code_adaptive co_tlbc
pyobject size ob_type
type_object size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset
heap_type_object size ht_cached_keys
tuple_object size ob_item ob_size
list_object size ob_item ob_size
set_object size used table mask
dict_object size ma_keys ma_values
float_object size ob_fval
long_object size lv_tag ob_digit
bytes_object size ob_size ob_sval
unicode_object size state length asciiobject_size compactunicodeobject_size
gc size collecting frame generation_stats_size generation_stats
gen_object size gi_name gi_iframe gi_frame_state
"""
"""Fields of 8 bytes each, by group, in their order; further groups of 3.14 and 3.15 are not read."""


def _fields(text: str) -> tuple[str, ...]:
    """The names of the fields, each as ``group.field``."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    return tuple(f"{group}.{field}" for group, *names in map(str.split, lines) for field in names)


FIELDS: dict[Version, tuple[str, ...]] = {
    (3, 13): _fields(_STRUCT_3_13),
    (3, 14): _fields(_STRUCT_3_14),
    (3, 15): _fields(_STRUCT_3_15),
}

BUILT_IN_TYPES = {
    "pyobject.ob_type": TYPE,
    "type_object.tp_name": TYPE_NAME,
    "type_object.tp_flags": TYPE_FLAGS,
    "type_object.tp_basicsize": BASIC_SIZE,
    "type_object.tp_dictoffset": DICT_OFFSET,
    "tuple_object.ob_size": SIZE,
    "list_object.ob_size": SIZE,
    "list_object.ob_item": LIST_ITEMS,
    "set_object.mask": SET_MASK,
    "set_object.table": SET_TABLE,
    "dict_object.ma_keys": DICT_KEYS,
    "dict_object.ma_values": DICT_VALUES,
    "float_object.ob_fval": FLOAT_VALUE,
    "long_object.lv_tag": SIZE,
    "long_object.ob_digit": INT_DIGITS,
    "bytes_object.ob_size": SIZE,
    "bytes_object.ob_sval": BYTES_DATA,
    "unicode_object.length": SIZE,
    "unicode_object.state": TEXT_STATE,
}
"""The offsets that :mod:`dstack.probes.node.cpython.objects` uses as constants; the target must state the same."""


def parse_header(header: bytes) -> Version:
    """The minor version of debug offsets, from their first ``HEADER_SIZE`` bytes or fewer.

    Raises :class:`UnreadableMemory` where these are no debug offsets, or of an interpreter that dstack cannot read.
    """
    cookie, number, is_free_threaded = struct.unpack(HEADER, header.ljust(HEADER_SIZE, b"\0"))
    if cookie != COOKIE:
        raise UnreadableMemory("its _PyRuntime does not begin with debug offsets, as in every Python from 3.13 on")
    major, minor, level = number >> 24, number >> 16 & 0xFF, number >> 4 & 0xF
    kind = "a free-threaded build of " if is_free_threaded else "a pre-release of " if level < CANDIDATE else ""
    if kind or (major, minor) not in FIELDS:
        raise UnreadableMemory(f"it runs {kind}Python {major}.{minor}, which dstack cannot read")
    return major, minor


def stated_python(pid: int) -> ForeignPython | UnreadablePython | None:
    """The Python that a process states itself: where its debug offsets are, and of which version.

    None where it has none, as before CPython 3.13, or where its memory cannot be read.
    """
    mapped = proc.mappings(pid)
    is_glibc = any(one.path.endswith(GLIBC) for one in mapped)
    data = [one for one in reversed(mapped) if one.offset and PYTHON_FILE.fullmatch(one.path)]  # they come after code
    with contextlib.suppress(OSError), open_memory(pid) as memory:
        for at, header in (found for one in data for found in _headers(memory, one)):
            try:
                return {"version": parse_header(header), "runtime": at} if is_glibc else {"unreadable": WITHOUT_GLIBC}
            except UnreadableMemory as error:
                return {"unreadable": str(error)}
    return None


def _headers(memory: ProcessMemory, mapped: proc.Mapping) -> Iterator[tuple[int, bytes]]:
    """What begins like debug offsets in this part of a process's memory, with its address."""
    with contextlib.suppress(UnreadableMemory):
        data = memory.read(mapped.start, mapped.end - mapped.start)
        for found in HEADER_OF_3.finditer(data):
            yield mapped.start + found.start(), data[found.start() : found.start() + HEADER_SIZE]


def require_version(header: bytes, expected: Version) -> None:
    """Raises :class:`UnreadableMemory` where this is no header of debug offsets of this minor version."""
    found = parse_header(header)
    if found != expected:
        raise UnreadableMemory(
            f"its debug offsets are of Python {found[0]}.{found[1]}, not {expected[0]}.{expected[1]}"
        )


def read_debug_offsets(memory: ProcessMemory, runtime: int, version: Version) -> dict[str, int]:
    """The offsets that the target states at ``runtime``, the address of its ``_PyRuntime``, by ``group.field``.

    Raises :class:`UnreadableMemory` where they are of another version than this, or contradict themselves or
    :mod:`dstack.probes.node.cpython.objects`.
    """
    require_version(memory.read(runtime, HEADER_SIZE), version)
    names = FIELDS[version]
    offsets = dict(zip(names, memory.pointers(runtime + HEADER_SIZE, len(names)), strict=True))
    _validate(offsets, LAYOUTS[version])
    return offsets


def _validate(offsets: dict[str, int], layout: CPythonLayout) -> None:
    for field, value in offsets.items():
        group, _, name = field.partition(".")
        size = offsets.get(f"{group}.size", MAX_STRUCT)
        if not 0 < size <= MAX_STRUCT or (value >= size and name not in SIZES):
            raise UnreadableMemory(f"its debug offset of {field} is {value} in a struct of {size} bytes")
    expected = {
        **BUILT_IN_TYPES,
        "tuple_object.ob_item": layout.tuple_items,
        "unicode_object.asciiobject_size": layout.text_headers[0],
        "unicode_object.compactunicodeobject_size": layout.text_headers[1],
    }
    for field, value in expected.items():
        if offsets.get(field, value) != value:
            raise UnreadableMemory(f"its debug offset of {field} is {offsets[field]}, not {value}")


def with_debug_offsets(layout: CPythonLayout, offsets: dict[str, int]) -> CPythonLayout:
    """The layout of the same minor version, with the offsets that the target states instead of the table's."""
    stated: dict[str, Any] = {
        one.name: offsets[one.metadata["stated"]] for one in fields(layout) if one.metadata["stated"] in offsets
    }
    for name in ("thread_frame", "code_names"):  # tuples: other versions need more than one offset
        stated[name] = (stated[name],)
    return replace(layout, **stated)
