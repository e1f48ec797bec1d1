"""Code objects: their names and the lines of their instructions equal those that Python gives."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import asyncio.tasks
import collections
import contextlib
import dataclasses
import inspect
import logging
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest.mock
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node.cpython import code_objects as module
from dstack.probes.node.cpython.code_objects import (
    SIZES,
    Code,
    CodeObjects,
    KnownPositions,
    StructFields,
    exception_table,
    lines,
    lines_3_10,
)
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.objects import Objects
from tests.unit.support.hostile_memory import Change, Copied, Recorder
from tests.unit.support.own_process import own_layout, own_objects

FIELDS = st.lists(st.integers(0, 30), min_size=2, max_size=12, unique=True).flatmap(
    lambda places: st.tuples(*(st.tuples(st.just(8 * place), st.sampled_from("QqIi")) for place in places))
)


@given(fields=FIELDS, doubled=st.booleans(), data=st.binary(min_size=400, max_size=400), at=st.integers(0, 100))
def test_fields_read_together_equal_fields_read_one_by_one(
    fields: tuple[tuple[int, str], ...], doubled: bool, data: bytes, at: int
) -> None:
    fields = (*fields, fields[0]) if doubled else fields
    record = StructFields(*fields)

    assert record.unpack(data, at) == tuple(
        struct.unpack_from(f"<{kind}", data, at + place)[0] for place, kind in fields
    )
    assert record.size == max(place + SIZES[kind] for place, kind in fields)
    assert record.unpack(data[: record.size]) == record.unpack(data)


def test_adjacent_fields_need_no_padding() -> None:
    record = StructFields((4, "i"), (0, "i"), (8, "Q"))

    assert record.size == 16
    assert record.unpack(struct.pack("<iiQ", -1, 2, 3)) == (2, -1, 3)


def test_too_few_bytes_are_an_error() -> None:
    with pytest.raises(struct.error):
        StructFields((0, "Q"), (8, "Q")).unpack(bytes(15))


MODULES: tuple[ModuleType, ...] = (
    *(argparse, ast, asyncio.base_events, asyncio.tasks, collections, contextlib, dataclasses, inspect, logging),
    *(queue, subprocess, tempfile, threading, typing, unittest.mock),
)
MOST_S = 30.0


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def all_codes(of: ModuleType) -> list[CodeType]:
    """All code objects of a module, including nested ones."""
    file = of.__file__ or ""
    with open(file, encoding="utf-8") as source:
        return list(codes_in(compile(source.read(), file, "exec")))


def odd_codes() -> list[CodeType]:
    """Lines that go back, lines far from each other, and functions without own code."""
    texts = [
        "x = [\n1,\n2,\n\n\n3][\n0]",
        "f(\n1\n)" + "\n" * 300 + "g()",
        "\n" * 70_000 + "def far():\n pass",
        "lambda: None",
        "for a in b:\n try:\n  with c: pass\n except d as e:\n  raise\n finally:\n  f()",
        "async def g():\n async for a in b:\n  yield [c async for c in d]\n async with e: pass",
        ";".join(["a = b"] * 500),
        "x = (" + "\n+ ".join(["a"] * 400) + ")",
    ]
    made = [compile(text, "odd.py", "exec") for text in texts]
    backwards = ast.parse("first()\nsecond()\nthird()")
    for number, statement in enumerate(reversed(backwards.body)):
        for node in ast.walk(statement):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = 1 + 1_000 * number  # type: ignore[attr-defined]
    return [code for one in (*made, compile(backwards, "back.py", "exec")) for code in codes_in(one)]


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    with open_memory(os.getpid(), keeps_pages=True) as found:
        yield found


def code_objects(memory: ProcessMemory, known: dict[int, Code] | None = None) -> CodeObjects:
    return CodeObjects(own_objects(memory), known)


def line_by_instruction(code: CodeType) -> dict[int, int]:
    """The line of every instruction, 0 where it has none."""
    return {at: line or 0 for start, end, line in code.co_lines() for at in range(start, end, 2)}


CODES = [pytest.param(lambda one=one: all_codes(one), id=one.__name__) for one in MODULES]


@pytest.mark.parametrize("many", [0, 20])
@pytest.mark.parametrize("make", [*CODES, pytest.param(odd_codes, id="odd")])
def test_every_instruction_has_the_line_that_python_gives(
    memory: ProcessMemory, make: Any, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY_POSITIONS", many)
    codes = make()
    found = code_objects(memory)
    found.load([id(code) for code in codes])

    for code in codes:
        one = found.code(id(code))
        assert (one.file, one.function) == (code.co_filename, code.co_name)
        assert one.qualified == getattr(code, "co_qualname", code.co_name)
        assert found.names(one) == local_names(code)
        assert found.stack_size(one) == code.co_stacksize
        for at, line in line_by_instruction(code).items():
            assert found.position(one, at).line == line
        assert found.position(one, len(code.co_code)).line == 0
        assert found.position(one, -2).line == code.co_firstlineno


def local_names(code: CodeType) -> tuple[str, ...]:
    """Names in the order of a frame's locals: an argument in a closure occurs once from 3.11 on."""
    cells = code.co_cellvars
    if sys.version_info >= (3, 11):
        cells = tuple(name for name in cells if name not in code.co_varnames)
    return (*code.co_varnames, *cells, *code.co_freevars)


def test_a_position_is_the_same_object_for_the_same_instruction(memory: ProcessMemory) -> None:
    code = threading.Condition.wait.__code__
    found = code_objects(memory)
    one = found.code(id(code))

    assert found.position(one, 10) is found.position(one, 10)
    assert found.position(one, 10, "other") is found.position(one, 10, "other")
    assert found.position(one, 10, "other").qualified == "other"
    assert found.position(one, 10).qualified == getattr(code, "co_qualname", "wait")


def test_equal_code_of_several_processes_has_the_same_positions(memory: ProcessMemory) -> None:
    texts = ["def f():\n    return 1\n", "def f():\n    return 1\n", "\ndef f():\n    return 1\n"]
    codes = [list(codes_in(compile(text, "same.py", "exec")))[-1] for text in texts]
    positions: KnownPositions = {}
    found = [CodeObjects(own_objects(memory), {}, positions) for _ in codes]

    one, equal, other = (
        objects.position(objects.code(id(code)), len(code.co_code) - 2)
        for objects, code in zip(found, codes, strict=True)
    )

    assert one is equal
    assert (one.line, other.line) == (2, 3)


def test_many_code_objects_are_read_in_few_system_calls(memory: ProcessMemory) -> None:
    codes = all_codes(inspect)
    calls = 0
    found = code_objects(memory)
    read_spans = memory._read_spans

    def counted(spans: Any) -> bytes:
        nonlocal calls
        calls += 1
        return read_spans(spans)

    memory._read_spans = counted  # type: ignore[method-assign]
    found.load([id(code) for code in codes])

    assert len(codes) > 100
    assert calls < 40


@pytest.mark.parametrize(
    "address",
    [0, 8, id(None), id(CodeType), id("text"), 2**46, 2**64 - 8],
    ids=["null", "low", "None", "a type", "a text", "high", "highest"],
)
def test_an_object_that_is_no_code_gives_none(memory: ProcessMemory, address: int) -> None:
    found = code_objects(memory)

    assert found.get(address) is None
    with pytest.raises(UnreadableMemory, match="no code object"):
        found.code(address)


# Caches of earlier samples


def test_a_cached_code_object_is_not_read_again(memory: ProcessMemory) -> None:
    known: dict[int, Code] = {}
    address = id(threading.Condition.wait.__code__)
    first = code_objects(memory, known).code(address)

    with open_memory(os.getpid(), keeps_pages=True) as again:
        assert code_objects(again, known).code(address) is first
        assert len(again.pages) < len(memory.pages)


def function_of(text: str) -> CodeType:
    made: dict[str, Any] = {}
    exec(compile(text, "made.py", "exec"), made)
    code: CodeType = made["f"].__code__
    return code


def test_another_code_object_at_the_same_address_is_not_the_cached_one() -> None:
    """As after a reload of a module, or when a lambda is released and another one is created."""
    one, other = function_of("def f(a):\n return a"), function_of("\n\ndef f(b):\n return [b,\n b]")
    recorder = Recorder()
    code_objects(recorder).load([id(one), id(other)])
    for code in map(code_objects(recorder).code, (id(one), id(other))):
        code_objects(recorder).names(code)
    words = range(16, sys.getsizeof(one) // 8 * 8, 8)  # all its words except the reference count and the type
    with open_memory(os.getpid()) as plain:
        replaced = [Change(id(one) + at, 0, plain.pointer(id(other) + at)) for at in words]
    known: dict[int, Code] = {}

    before_it = code_objects(Copied(recorder.pages, []), known)
    before = before_it.code(id(one))
    lines_before = [before_it.position(before, at).line for at in line_by_instruction(one)]
    after_it = code_objects(Copied(recorder.pages, replaced), known)
    after = after_it.code(id(one))

    assert lines_before == list(line_by_instruction(one).values())
    assert after is not before
    assert [after_it.position(after, at).line for at in line_by_instruction(other)] == list(
        line_by_instruction(other).values()
    )
    assert after_it.names(after) == ("b",)
    assert known[id(one)] is after


def test_a_cached_address_without_a_code_object_gives_none() -> None:
    code = function_of("def f(a):\n return a")
    recorder = Recorder()
    known: dict[int, Code] = {}
    code_objects(recorder, known).code(id(code))

    without_type = Copied(recorder.pages, [Change(id(code) + 8, 0, None)])
    other_type = Copied(recorder.pages, [Change(id(code) + 8, 0, id(str))])

    assert known.keys() == {id(code)}
    assert code_objects(without_type, known).get(id(code)) is None
    assert code_objects(other_type, known).get(id(code)) is None


# Tables


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 keeps blocks in the frame instead")
def test_exception_tables_are_parsed_as_python_parses_them(memory: ProcessMemory) -> None:
    import dis

    parse: Any = dis._parse_exception_table  # type: ignore[attr-defined]
    found = code_objects(memory)
    for code in [code for one in MODULES for code in all_codes(one)]:
        expected = [(entry.start, entry.end, entry.depth) for entry in parse(code)]
        assert exception_table(code.co_exceptiontable) == expected  # type: ignore[attr-defined]
        for start, end, depth in expected[:3]:
            at = found.blocks_at(found.code(id(code)), start)
            assert at >= depth
            assert at == max(d for s, e, d in expected if s <= start < e)
            assert found.blocks_at(found.code(id(code)), end) == max(
                (d for s, e, d in expected if s <= end < e), default=0
            )


@given(table=st.binary(max_size=200))
def test_any_exception_table_is_parsed(table: bytes) -> None:
    assert all(start <= end and depth >= 0 for start, end, depth in exception_table(table))


@pytest.mark.parametrize("decode", [lines, lines_3_10])
@given(table=st.binary(max_size=300), first=st.integers(-(2**31), 2**31 - 1))
def test_any_line_table_is_parsed_in_order(decode: Any, table: bytes, first: int) -> None:
    end = 0
    for start, stop, line in decode(table, first):
        assert end <= start <= stop
        assert line is None or type(line) is int
        end = stop


class LongTable(Objects):
    """Every code object has the longest line table."""

    def data(self, address: int, longest: int = 0) -> bytes:
        return bytes([0x80, 0]) * (longest // 2)


def test_many_instructions_in_a_long_table_are_not_slow(memory: ProcessMemory) -> None:
    """A hostile process, with all frames at different instructions, does not delay others."""
    found = CodeObjects(LongTable(memory, own_layout()))
    code = found.code(id(threading.Condition.wait.__code__))
    began = time.process_time()

    for instruction in range(0, 40_000, 2):
        found.position(code, 200_000 + instruction)

    assert time.process_time() - began < MOST_S
