"""Where the core worker library keeps, for each of its threads, the task that the thread runs.

``_raylet.so`` has a symbol table in all wheels from Ray 2.46 to 2.60, and in it ``WorkerContext::thread_context_``, a
thread-local pointer. The library is looked at once, here; what is found is sent to the nodes, which make sure by the
build id that their workers have mapped the same library. A process of this host under another Python has another one.
"""

from __future__ import annotations

import importlib.util
import struct
from functools import cache
from pathlib import Path
from typing import Any

from dstack.probes.elf import ElfFile
from dstack.probes.mapped_file import MappedFile
from dstack.probes.node.ray.thread_tasks import library_of

THREAD_CONTEXT = b"_ZN3ray4core13WorkerContext15thread_context_E"
R_X86_64_DTPMOD64 = 16
_RELOCATION = struct.Struct("<QQq")
"""Where, what and which symbol, and a number to be added."""
_OWN_MODULE = struct.pack("<Q", R_X86_64_DTPMOD64)


@cache
def thread_context_layout(library: Path | None = None) -> dict[str, Any] | None:
    """Addresses relative to the library's load address, or None where it does not tell.

    ``note_at`` and ``note``: its build id; ``module_at``: where the loader has put the library's thread-local module
    number; ``offset``: of the pointer in that module's block. About 5 ms.
    """
    path = library or _installed()
    if path is None:
        return None
    try:
        with ElfFile(path) as elf:
            return _layout(elf)
    except (OSError, ValueError, LookupError, struct.error):
        return None


def thread_context_of(pid: int) -> dict[str, Any] | None:
    """The same of the library that a process of this host has mapped."""
    library = library_of(pid)
    return _layout_of(MappedFile.of(library, pid)) if library else None


@cache
def _layout_of(file: MappedFile) -> dict[str, Any] | None:
    return thread_context_layout(Path(file.path))


def _installed() -> Path | None:
    ray = importlib.util.find_spec("ray")
    folders = (ray and ray.submodule_search_locations) or ()
    return next((path for folder in folders if (path := Path(folder) / "_raylet.so").exists()), None)


def _layout(library: ElfFile) -> dict[str, Any]:
    note = library.section(".note.gnu.build-id")
    return {
        "note_at": note.address,
        "note": library.contents(note).hex(),
        "module_at": _module_slot(library.contents(library.section(".rela.dyn"))),
        "offset": _offset(library),
    }


def _module_slot(relocations: bytes) -> int:
    """The first module number that the loader fills in for the library itself, which is symbol 0."""
    at = relocations.index(_OWN_MODULE)
    while at % _RELOCATION.size != _RELOCATION.size // 3:
        at = relocations.index(_OWN_MODULE, at + 1)
    return int(_RELOCATION.unpack_from(relocations, at - _RELOCATION.size // 3)[0])


def _offset(library: ElfFile) -> int:
    """From the small table, the loader's, which has the symbol in all wheels seen; else from the large one."""
    try:
        return library.symbol(".dynsym", THREAD_CONTEXT)
    except (LookupError, ValueError):
        return library.symbol(".symtab", THREAD_CONTEXT)
