"""Finds where the core worker library keeps the current task of each thread.

``_raylet.so`` has a symbol table in all wheels from Ray 2.46 to 2.60, and in it ``WorkerContext::thread_context_``, a
thread-local pointer. The library is read once, here; the result is sent to the nodes, which verify by the
build id that their workers have mapped the same library. A process of this host under another Python has another one.
"""

from __future__ import annotations

import importlib.util
import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dstack.probes.node import wire
from dstack.probes.node.procfs.proc import Mapping, mapped_files
from dstack.probes.node.ray_memory import library_of


@dataclass(frozen=True)
class MappedFile:
    """A file by its device and inode, and a path to open it, also for a process in a container."""

    key: tuple[str, str] | None
    path: str = field(compare=False)

    @classmethod
    def of(cls, mapping: Mapping, pid: int) -> MappedFile:
        """The file of a mapping of a process."""
        return cls(mapping.file, f"/proc/{pid}/root{mapping.path}")


THREAD_CONTEXT = b"_ZN3ray4core13WorkerContext15thread_context_E"
R_X86_64_DTPMOD64 = 16
_RELOCATION = struct.Struct("<QQq")
"""A relocation: offset, info (type and symbol) and addend."""
_OWN_MODULE = struct.pack("<Q", R_X86_64_DTPMOD64)


@cache
def thread_context_layout(library: Path | None = None) -> wire.ThreadContext | None:
    """Addresses relative to the library's load address, or None if it has no such symbol.

    ``note_at`` and ``note``: its build id; ``module_at``: where the loader has put the library's thread-local module
    number; ``offset``: of the pointer in that module's block. 0.05 s of CPU time, most of it for loading pyelftools.
    """
    from elftools.common.exceptions import ELFError  # loaded here, in a background thread
    from elftools.elf.elffile import ELFFile

    path = library or _installed()
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return _layout(ELFFile(file))
    except (OSError, ELFError, ValueError, LookupError, struct.error, AttributeError, StopIteration):
        return None


def thread_context_of(pid: int) -> wire.ThreadContext | None:
    """The addresses in the library that a process of this host has mapped."""
    library = library_of(mapped_files(pid).values())
    return _layout_of(MappedFile.of(library, pid)) if library else None


@cache
def _layout_of(file: MappedFile) -> wire.ThreadContext | None:
    return thread_context_layout(Path(file.path))


def _installed() -> Path | None:
    ray = importlib.util.find_spec("ray")
    folders = (ray and ray.submodule_search_locations) or ()
    return next((path for folder in folders if (path := Path(folder) / "_raylet.so").exists()), None)


def _layout(library: Any) -> wire.ThreadContext:
    note = next(library.iter_segments("PT_NOTE"))
    return {
        "note_at": note["p_vaddr"],
        "note": note.data().hex(),
        "module_at": _module_slot(library.get_section_by_name(".rela.dyn").data()),
        "offset": _offset(library),
    }


def _module_slot(relocations: bytes) -> int:
    """The first module number that the loader fills in for the library itself, which is symbol 0.

    Found by its bytes: to unpack 75,000 relocations one by one takes 0.02 s.
    """
    offset_of_info = 8
    at = relocations.index(_OWN_MODULE)
    while at % _RELOCATION.size != offset_of_info:
        at = relocations.index(_OWN_MODULE, at + 1)
    return int(_RELOCATION.unpack_from(relocations, at - offset_of_info)[0])


def _offset(library: Any) -> int:
    """The symbol in the loader's small table, which has it in all known wheels; else in the large one."""
    try:
        return _symbol(library, ".dynsym")
    except (AttributeError, ValueError):
        return _symbol(library, ".symtab")


def _symbol(library: Any, table_name: str) -> int:
    """Finds a symbol by the offset of its name in the string table: a walk through 100,000 symbols takes seconds."""
    symbols = library.get_section_by_name(table_name)
    name = library.get_section(symbols["sh_link"]).data().index(b"\0" + THREAD_CONTEXT + b"\0") + 1
    table, size = symbols.data(), symbols["sh_entsize"]
    at = table.index(struct.pack("<I", name))
    while at % size:
        at = table.index(struct.pack("<I", name), at + 1)
    return int(symbols.get_symbol(at // size)["st_value"])
