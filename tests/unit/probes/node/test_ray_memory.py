"""The task of a thread: the fast search in Ray's library agrees with a complete one, and each kind of slot is read."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.procfs import proc
from dstack.probes.node.ray_memory import (
    DTPMOD64,
    THREAD_CONTEXT,
    TLSDESC,
    ThreadContext,
    ThreadTasks,
    thread_context_layout,
)

TASK = bytes(range(1, 25))


def library() -> Path:
    spec = importlib.util.find_spec("ray")
    assert spec
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "_raylet.so"


def layout_of(path: Path) -> ThreadContext | None:
    return thread_context_layout(str(path), proc.mapped_files(os.getpid()))


def test_the_slot_and_the_symbol_are_those_of_a_complete_search() -> None:
    with library().open("rb") as file:
        elf: Any = ELFFile(file)
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        index = next(at for at, one in enumerate(symbols) if one.name == THREAD_CONTEXT.decode())
        wanted = (DTPMOD64, 0) if elf["e_machine"] == "EM_X86_64" else (TLSDESC, index)
        tables = [elf.get_section_by_name(name) for name in (".rela.dyn", ".rela.plt")]
        found = [one for table in tables for one in table.iter_relocations()]
        slot = next(one["r_offset"] for one in found if (one["r_info_type"], one["r_info_sym"]) == wanted)

    layout = layout_of(library())

    assert layout is not None
    assert (layout.slot, layout.offset) == (slot, symbols[index]["st_value"])


def test_a_truncated_or_malformed_library_is_no_error(tmp_path: Path) -> None:
    whole = library().read_bytes()
    cut, pipe = tmp_path / "cut.so", tmp_path / "pipe.so"
    os.mkfifo(pipe)

    for size in (0, 63, 64, len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:size])
        assert layout_of(cut) is None
    assert layout_of(Path(sys.executable).resolve()) is None
    assert layout_of(tmp_path / "nowhere.so") is None
    assert layout_of(pipe) is None


class Thread:
    """A library's slot and a thread's storage, in this process's own memory."""

    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * 32)()
        self.start = ctypes.addressof(self.words)
        self.context = ctypes.create_string_buffer(bytes(8) + TASK)
        self.put(16, ctypes.addressof(self.context))  # the thread-local pointer, in a block that begins at word 14
        self.put(10, 7)  # how many modules have blocks, two words before the first of them
        self.put(12 + 2 * 3, self.at(14))
        self.put(8, self.at(12))  # the thread's pointer to the table

    def at(self, word: int) -> int:
        return self.start + 8 * word

    def put(self, word: int, value: int) -> None:
        self.words[word] = value

    def task(self, *, has_descriptor: bool, pthread: int = 6, dtv: int = 16) -> str | None:
        layout = ThreadContext(0, b"", slot=0, offset=16, dtv=dtv, has_descriptor=has_descriptor)
        mapping = proc.Mapping(self.start, self.start + 256, 0, None, "/ray/_raylet.so")
        with open_memory(os.getpid()) as memory:
            return ThreadTasks(memory, mapping, layout).task_of(self.at(pthread))


def module_number(thread: Thread) -> None:
    thread.put(0, 3)


def descriptor_of_a_module(thread: Thread) -> None:
    thread.put(1, thread.at(24))
    thread.put(24, 3)
    thread.put(25, 16)


def descriptor_of_a_distance(thread: Thread) -> None:
    thread.put(1, 8 * 8)  # from word 8 to word 16


@pytest.mark.parametrize(
    ("slot", "has_descriptor"),
    [(module_number, False), (descriptor_of_a_module, True), (descriptor_of_a_distance, True)],
)
def test_the_task_is_found_by_each_kind_of_slot(slot: Callable[[Thread], None], has_descriptor: bool) -> None:
    thread = Thread()
    slot(thread)

    assert thread.task(has_descriptor=has_descriptor) == TASK.hex()


def test_another_slot_is_rejected() -> None:
    thread = Thread()
    thread.put(0, 1 << 40)
    with pytest.raises(UnreadableMemory, match="not the number of a module"):
        thread.task(has_descriptor=False)
    descriptor_of_a_module(thread)
    thread.put(25, 24)
    with pytest.raises(UnreadableMemory, match="the descriptor of its variable is another one"):
        thread.task(has_descriptor=True)


def test_a_thread_without_its_block_runs_no_task() -> None:
    thread = Thread()
    module_number(thread)
    thread.put(10, 2)
    assert thread.task(has_descriptor=False) is None
