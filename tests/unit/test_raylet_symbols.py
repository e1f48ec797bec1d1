"""Where Ray's library keeps a thread's task: found as pyelftools finds it, and refused where it is not there."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from dstack.probes.elf import ElfFile
from dstack.probes.raylet_symbols import R_X86_64_DTPMOD64, THREAD_CONTEXT, thread_context_layout

HEADER = 64


def library() -> Path:
    spec = importlib.util.find_spec("ray")
    assert spec
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "_raylet.so"


def test_it_is_found_as_pyelftools_finds_it() -> None:
    with library().open("rb") as file:
        elf: Any = ELFFile(file)
        segment = next(elf.iter_segments("PT_NOTE"))
        note_at, note = segment["p_vaddr"], segment.data().hex()
        symbols = elf.get_section_by_name(".symtab")
        names = elf.get_section(symbols["sh_link"]).data()
        name = struct.pack("<I", names.index(b"\0" + THREAD_CONTEXT + b"\0") + 1)
        symbol = next(struct.iter_unpack("<Q", symbols.data()[symbols.data().index(name) + 8 :][:8]))
        relocations = struct.iter_unpack("<QQq", elf.get_section_by_name(".rela.dyn").data())
        slot = next(at for at, info, _ in relocations if info == R_X86_64_DTPMOD64)

    layout = thread_context_layout()

    assert layout == {"note_at": note_at, "note": note, "module_at": slot, "offset": symbol[0]}
    with ElfFile(library()) as own:
        assert own.symbol(".symtab", THREAD_CONTEXT) == own.symbol(".dynsym", THREAD_CONTEXT) == symbol[0]


def test_a_library_without_the_symbol_or_that_is_cut_off_is_no_error(tmp_path: Path) -> None:
    cut = tmp_path / "cut.so"
    whole = library().read_bytes()
    wrong_machine = tmp_path / "32.so"
    wrong_machine.write_bytes(whole[:4] + b"\x01" + whole[5:HEADER])

    for size in (0, HEADER - 1, HEADER, len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:size])
        assert thread_context_layout.__wrapped__(cut) is None
    assert thread_context_layout(wrong_machine) is None
    assert thread_context_layout(Path(sys.executable).resolve()) is None
    assert thread_context_layout(tmp_path / "nowhere.so") is None


def test_sections_are_found_by_name() -> None:
    with ElfFile(Path(shutil.which("sh") or "")) as elf:
        assert elf.contents(elf.section(".interp")).startswith(b"/lib")
        with pytest.raises(LookupError):
            elf.section(".nowhere")
