"""Offsets that a target states itself are used where they make sense, and refused with a sentence where they do not."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython.debug_offsets import (
    BUILT_IN_TYPES,
    COOKIE,
    FIELDS,
    HEADER,
    HEADER_SIZE,
    DebugOffsets,
    read_debug_offsets,
    with_debug_offsets,
)
from dstack.probes.node.cpython.interpreter import Interpreter, OwnPython
from dstack.probes.node.cpython.layout import Layout, calibrate, runtime_address
from dstack.probes.node.cpython.memory import Unreadable, open_memory
from dstack.probes.node.cpython.objects import tuple_items
from dstack.probes.node.cpython.saved_layouts import TABLES
from tests.fuzzing.effort import examples

RELEASE = 0xF0
VERSIONS = sorted(FIELDS)
STRUCT_BYTES = 1 << 12

has_its_own = pytest.mark.skipif(sys.version_info < (3, 13), reason="debug offsets are there from CPython 3.13 on")


def header_of(version: tuple[int, int], level: int = RELEASE, free_threaded: int = 0) -> bytes:
    return struct.pack(HEADER, COOKIE, version[0] << 24 | version[1] << 16 | level, free_threaded)


def plausible(version: tuple[int, int]) -> dict[str, int]:
    """Offsets of which all differ, but for those of built-in types, which are what they must be."""
    values = {field: 8 * at for at, field in enumerate(FIELDS[version])}
    sizes = {field: STRUCT_BYTES for field in FIELDS[version] if field.endswith(".size")}
    types = {field: value for field, value in BUILT_IN_TYPES.items() if field in values}
    return {**values, **sizes, **types, "tuple_object.ob_item": tuple_items(version)}


def stated(version: tuple[int, int], header: bytes = b"", **changes: int) -> bytes:
    """What stands at the ``_PyRuntime`` of such a target; a change is written as ``group__field``."""
    values = plausible(version) | {name.replace("__", "."): value for name, value in changes.items()}
    return (header or header_of(version)) + struct.pack(f"<{len(values)}Q", *values.values())


def read(data: bytes, version: tuple[int, int]) -> DebugOffsets:
    buffer = ctypes.create_string_buffer(data, len(data))
    with open_memory(os.getpid()) as memory:
        return read_debug_offsets(memory, ctypes.addressof(buffer), version)


@has_its_own
def test_stated_offsets_equal_the_calibrated_ones() -> None:
    calibrated = calibrate()

    with open_memory(os.getpid()) as memory:
        offsets = read_debug_offsets(memory, runtime_address(), calibrated.version)

    assert with_debug_offsets(calibrated, offsets) == calibrated


@pytest.mark.parametrize("version", VERSIONS)
def test_stated_offsets_take_precedence_over_saved_ones(version: tuple[int, int]) -> None:
    offsets = read(stated(version), version)

    found, saved = with_debug_offsets(TABLES[version], offsets), TABLES[version]

    assert found.version == saved.version
    assert found.thread_frame == (offsets["thread_state.current_frame"],)
    assert found.code_names == (offsets["code_object.localsplusnames"],)
    assert found.coroutines.interpreter_modules == offsets["interpreter_state.imports_modules"]
    generators = {"generator_frame", "generator_state", "frame_stack_top"} if version >= (3, 14) else set()
    named = {"interpreter_modules", "code_first_line", "code_lines", "code_qualname"}
    assert differing(found.coroutines, saved.coroutines) == generators | named
    assert differing(found, saved) == {
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
        "coroutines",
    }


def differing(one: Any, other: Any) -> set[str]:
    return {field.name for field in fields(one) if getattr(one, field.name) != getattr(other, field.name)}


def test_the_layout_of_a_target_has_its_own_offsets() -> None:
    version = VERSIONS[-1]
    data = ctypes.create_string_buffer(stated(version))
    interpreter = Interpreter({"version": version, "runtime": ctypes.addressof(data)}, NotNeeded(), {})

    with open_memory(os.getpid()) as memory:
        layout = interpreter.layout(memory)

    assert layout.frame_locals == plausible(version)["interpreter_frame.localsplus"]
    assert layout.rlock_owner == TABLES[version].rlock_owner


class NotNeeded(OwnPython):
    """The reader's own interpreter, which is of another version than the target's."""

    def layout(self) -> Layout:
        raise AssertionError("the reader's own layout is not needed")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"\0" * HEADER_SIZE, "its _PyRuntime does not begin with debug offsets, as in every Python from 3.13 on"),
        (
            header_of((3, 14), free_threaded=1),
            "it runs a free-threaded build of Python 3.14, which dstack cannot read",
        ),
        (header_of((3, 15)), "it runs Python 3.15, which dstack cannot read"),
        (header_of((3, 12)), "it runs Python 3.12, which dstack cannot read"),
        (
            header_of((3, 14), 0xB3),
            "it runs a pre-release of Python 3.14, which dstack cannot read",
        ),
        (header_of((3, 13)), "its debug offsets are of Python 3.13, not 3.14"),
    ],
)
def test_unsupported_builds_are_rejected(header: bytes, said: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(stated((3, 14), header), (3, 14))

    assert str(refused.value) == said


def test_a_release_candidate_has_the_layout_of_its_release() -> None:
    candidate = header_of((3, 14), 0xC2)

    assert read(stated((3, 14), candidate), (3, 14)) == read(stated((3, 14)), (3, 14))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"interpreter_frame__previous": STRUCT_BYTES}, "its debug offset of interpreter_frame.previous is 4096"),
        ({"thread_state__next": 2**64 - 8}, "its debug offset of thread_state.next is"),
        ({"code_object__size": 0}, "its debug offset of code_object.size is 0"),
        ({"gen_object__size": 2**62}, "its debug offset of gen_object.size is"),
        ({"tuple_object__ob_item": 24}, "its debug offset of tuple_object.ob_item is 24, not 32"),
        ({"pyobject__ob_type": 24}, "its debug offset of pyobject.ob_type is 24, not 8"),
    ],
)
def test_impossible_offsets_are_rejected(changes: dict[str, int], said: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(stated((3, 14), b"", **changes), (3, 14))

    assert str(refused.value).startswith(said)


def test_unmapped_offsets_are_rejected() -> None:
    with open_memory(os.getpid()) as memory, pytest.raises(Unreadable):
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

    with contextlib.suppress(Unreadable):
        offsets = read(header + data, version).offsets
        assert all(value <= offsets[f"{field.partition('.')[0]}.size"] for field, value in offsets.items())
