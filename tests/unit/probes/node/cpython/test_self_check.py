"""A wrong offset is noticed by what the reader knows of its own objects, whatever else the process does."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from dstack.probes.node.cpython import python_process
from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION, CPythonLayout
from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.python_process import own_layout, runtime_address
from dstack.probes.node.cpython.self_check import require_own_layout

LAYOUT = LAYOUTS[OWN_VERSION]
NOT_CHECKED = {"version", "task_waiter", "thread_next"}
"""No offset; one with others of the same struct around it; and one that only shows with further threads."""
if OWN_VERSION == (3, 10):
    NOT_CHECKED.add("code_start")  # no instruction is an address
FIELDS = [one.name for one in fields(LAYOUT) if one.name not in NOT_CHECKED and getattr(LAYOUT, one.name) is not None]


def check(layout: CPythonLayout) -> None:
    with open_memory(os.getpid()) as memory:
        require_own_layout(memory, layout, runtime_address())


def moved(value: Any, by: int) -> Any:
    """Another offset of the same kind, as of a build with more words in the struct."""
    match value:
        case int():
            return value + by
        case tuple():
            return tuple(one + by for one in value)
    return replace(value, task_node=value.task_node + by)


@pytest.mark.parametrize("field", FIELDS)
def test_an_offset_that_is_wrong_is_noticed(field: str) -> None:
    """By one word or by two: one of them may have the same content, as the first and the main interpreter."""
    changes: list[dict[str, Any]] = [{field: moved(getattr(LAYOUT, field), by)} for by in (8, 16)]

    with pytest.raises(UnreadableMemory, match="the memory layout of dstack's Python is not as expected: "):
        deque(map(check, (replace(LAYOUT, **change) for change in changes)), maxlen=0)


def test_the_check_is_made_within_a_running_task_too_and_leaves_nothing_behind() -> None:
    generators: list[Any] = []

    async def read() -> set[asyncio.Task[Any]]:
        sys.set_asyncgen_hooks(finalizer=generators.append)
        check(LAYOUT)
        gc.collect()
        return asyncio.all_tasks() - {asyncio.current_task()}

    threads = threading.enumerate()

    assert asyncio.run(read()) == set()
    assert generators == []
    assert threading.enumerate() == threads


def test_threads_that_start_and_end_do_not_disturb_the_check() -> None:
    is_over = threading.Event()

    def start_threads() -> None:
        while not is_over.is_set():
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    starter = threading.Thread(target=start_threads)
    starter.start()
    try:
        for _ in range(50):
            assert own_layout() == LAYOUT
    finally:
        is_over.set()
        starter.join()


def deep(function: Callable[[], object], depth: int) -> object:
    return deep(function, depth - 1) if depth else function()


@pytest.mark.parametrize("depth", range(0, 200, 7))
def test_the_depth_of_the_stack_does_not_matter(depth: int) -> None:
    """The frames of CPython 3.11 and later lie in chunks, at the end of which the next one begins."""
    deep(lambda: check(LAYOUT), depth)


def test_an_interpreter_that_is_not_in_the_table_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_process, "LAYOUTS", {})

    with pytest.raises(UnreadableMemory, match=f"memory of cpython 3.{OWN_VERSION[1]} is not supported"):
        own_layout()
