"""The address of a thread's task in Ray's library: the fast search agrees with a complete one."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from dstack.probes.node_access.targets import R_X86_64_DTPMOD64, THREAD_CONTEXT, thread_context_layout


def library() -> Path:
    spec = importlib.util.find_spec("ray")
    assert spec
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "_raylet.so"


def test_the_first_module_number_and_the_symbol_of_the_large_table_are_found() -> None:
    with library().open("rb") as file:
        elf: Any = ELFFile(file)
        relocations = struct.iter_unpack("<QQq", elf.get_section_by_name(".rela.dyn").data())
        slot = next(at for at, info, _ in relocations if info == R_X86_64_DTPMOD64)
        symbols = elf.get_section_by_name(".symtab")
        name = elf.get_section(symbols["sh_link"]).data().index(b"\0" + THREAD_CONTEXT + b"\0") + 1
        values = [value for at, _, _, _, value, _ in struct.iter_unpack("<I2BH2Q", symbols.data()) if at == name]

    layout = thread_context_layout()

    assert layout is not None
    assert (layout["module_at"], [layout["offset"]]) == (slot, values)


def test_a_truncated_or_malformed_library_is_no_error(tmp_path: Path) -> None:
    whole = library().read_bytes()
    cut = tmp_path / "cut.so"

    for size in (0, 63, 64, len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:size])
        thread_context_layout.cache_clear()
        assert thread_context_layout(cut) is None
    assert thread_context_layout(Path(sys.executable).resolve()) is None
    assert thread_context_layout(tmp_path / "nowhere.so") is None
