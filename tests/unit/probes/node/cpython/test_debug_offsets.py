"""Offsets stated by a target are used if they are possible, and rejected with a reason otherwise."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython.debug_offsets import (
    BUILT_IN_TYPES,
    COOKIE,
    FIELDS,
    HEADER,
    HEADER_SIZE,
    MAX_STRUCT,
    SIZES,
    read_debug_offsets,
    with_debug_offsets,
)
from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION, CPythonLayout
from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.python_process import layout_of, runtime_address
from tests.fuzzing.effort import examples

RELEASE = 0xF0
VERSIONS = sorted(FIELDS)
STRUCT_BYTES = 1 << 12

has_its_own = pytest.mark.skipif(sys.version_info < (3, 13), reason="debug offsets are there from CPython 3.13 on")


def header_of(version: tuple[int, int], level: int = RELEASE, free_threaded: int = 0) -> bytes:
    return struct.pack(HEADER, COOKIE, version[0] << 24 | version[1] << 16 | level, free_threaded)


def plausible(version: tuple[int, int]) -> dict[str, int]:
    """Offsets that all differ, except those of built-in types, which are correct."""
    values = {field: 8 * at for at, field in enumerate(FIELDS[version])}
    sizes = {field: STRUCT_BYTES for field in FIELDS[version] if field.endswith(".size")}
    types = {field: value for field, value in BUILT_IN_TYPES.items() if field in values}
    layout = LAYOUTS[version]
    checked = {
        "tuple_object.ob_item": layout.tuple_items,
        "unicode_object.asciiobject_size": layout.text_headers[0],
        "unicode_object.compactunicodeobject_size": layout.text_headers[1],
    }
    return {**values, **sizes, **types, **{field: value for field, value in checked.items() if field in values}}


def stated(version: tuple[int, int], header: bytes = b"", **changes: int) -> bytes:
    """The bytes at the ``_PyRuntime`` of such a target; a change is written as ``group__field``."""
    values = plausible(version) | {name.replace("__", "."): value for name, value in changes.items()}
    return (header or header_of(version)) + struct.pack(f"<{len(values)}Q", *values.values())


def read(data: bytes, version: tuple[int, int]) -> dict[str, int]:
    buffer = ctypes.create_string_buffer(data, len(data))
    with open_memory(os.getpid()) as memory:
        return read_debug_offsets(memory, ctypes.addressof(buffer), version)


@has_its_own
def test_stated_offsets_equal_those_of_the_table() -> None:
    with open_memory(os.getpid()) as memory:
        offsets = read_debug_offsets(memory, runtime_address(), OWN_VERSION)

    assert with_debug_offsets(LAYOUTS[OWN_VERSION], offsets) == LAYOUTS[OWN_VERSION]


@pytest.mark.parametrize("version", VERSIONS)
def test_stated_offsets_take_precedence_over_those_of_the_table(version: tuple[int, int]) -> None:
    offsets = read(stated(version), version)

    found, saved = with_debug_offsets(LAYOUTS[version], offsets), LAYOUTS[version]

    assert found.version == saved.version
    assert found.thread_frame == (offsets["thread_state.current_frame"],)
    assert found.code_names == (offsets["code_object.localsplusnames"],)
    assert found.interpreter_modules == offsets["interpreter_state.imports_modules"]
    from_the_version = {"generator_frame", "generator_state", "frame_stack_top"} if version >= (3, 14) else set()
    from_the_version |= {"cached_keys"} if version >= (3, 15) else set()
    assert differing(found, saved) == from_the_version | {
        "interpreter_modules",
        "code_first_line",
        "code_lines",
        "code_qualname",
        "runtime_interpreter",
        "interpreter_threads",
        "thread_next",
        "thread_id",
        "thread_frame",
        "frame_previous",
        "frame_code",
        "frame_instruction",
        "frame_locals",
        "code_file",
        "code_function",
        "code_names",
        "code_start",
    }


def differing(one: CPythonLayout, other: CPythonLayout) -> set[str]:
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


def test_the_layout_of_a_target_has_its_own_offsets() -> None:
    version = VERSIONS[-1]
    data = ctypes.create_string_buffer(stated(version))

    with open_memory(os.getpid()) as memory:
        layout = layout_of(memory, ctypes.addressof(data), version)

    assert layout.frame_locals == plausible(version)["interpreter_frame.localsplus"]
    assert layout.rlock_owner == LAYOUTS[version].rlock_owner


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\0" * HEADER_SIZE, "its _PyRuntime does not begin with debug offsets, as in every Python from 3.13 on"),
        (
            header_of((3, 14), free_threaded=1),
            "it runs a free-threaded build of Python 3.14, which dstack cannot read",
        ),
        (header_of((3, 16)), "it runs Python 3.16, which dstack cannot read"),
        (header_of((3, 12)), "it runs Python 3.12, which dstack cannot read"),
        (
            header_of((3, 14), 0xB3),
            "it runs a pre-release of Python 3.14, which dstack cannot read",
        ),
        (header_of((3, 13)), "its debug offsets are of Python 3.13, not 3.14"),
    ],
)
def test_unsupported_builds_are_rejected(header: bytes, reason: str) -> None:
    with pytest.raises(UnreadableMemory) as error:
        read(stated((3, 14), header), (3, 14))

    assert str(error.value) == reason


def test_a_release_candidate_has_the_layout_of_its_release() -> None:
    candidate = header_of((3, 14), 0xC2)

    assert read(stated((3, 14), candidate), (3, 14)) == read(stated((3, 14)), (3, 14))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interpreter_frame__previous": STRUCT_BYTES}, "its debug offset of interpreter_frame.previous is 4096"),
        ({"thread_state__next": 2**64 - 8}, "its debug offset of thread_state.next is"),
        ({"code_object__size": 0}, "its debug offset of code_object.size is 0"),
        ({"gen_object__size": 2**62}, "its debug offset of gen_object.size is"),
        ({"tuple_object__ob_item": 24}, "its debug offset of tuple_object.ob_item is 24, not 32"),
        ({"pyobject__ob_type": 24}, "its debug offset of pyobject.ob_type is 24, not 8"),
    ],
)
def test_impossible_offsets_are_rejected(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(UnreadableMemory) as error:
        read(stated((3, 14), b"", **changes), (3, 14))

    assert str(error.value).startswith(reason)


def test_unmapped_offsets_are_rejected() -> None:
    with open_memory(os.getpid()) as memory, pytest.raises(UnreadableMemory):
        read_debug_offsets(memory, 8, (3, 14))


@examples(100)
@given(
    version=st.sampled_from(VERSIONS),
    words=st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 300)), min_size=120, max_size=120),
    has_header=st.booleans(),
)
def test_any_bytes_are_rejected_or_give_offsets_within_their_structs(
    version: tuple[int, int], words: list[int], has_header: bool
) -> None:
    data = struct.pack(f"<{len(words)}Q", *words)
    header = header_of(version) if has_header else b""

    with contextlib.suppress(UnreadableMemory):
        offsets = read(header + data, version)
        sizes = {field: offsets.get(f"{field.partition('.')[0]}.size", MAX_STRUCT) for field in offsets}
        assert all(value <= sizes[field] for field, value in offsets.items() if not field.endswith(SIZES))
