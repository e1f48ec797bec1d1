"""The backends of torch's process groups in its libraries: how their objects are recognised, and where they count.

No offset of a counter is assumed. Torch's own function says where it is: its machine code is a load
(``ProcessGroupNCCL::getSequenceNumberForGroup``), or a load, an addition and a store at one offset
(``ProcessGroupGloo::nextTag``). That tag numbers the messages of a collective, so those of equal numbers meet. Gloo's
``getSequenceNumberForGroup`` also counts sends and receives, in which the members of a group differ.

Seen on torch 2.13 to 2.15 for x86-64: gloo in processes, NCCL's library without a GPU. On aarch64 the code of torch
2.13 was decoded, and not run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.elf import Elf
from dstack.probes.node.procfs import proc

BackendName = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class _Names:
    """The symbols of a backend in its library: its virtual table, the function that reads its counter, its recorder."""

    library: str
    vtable: bytes
    counter: bytes
    recorder: bytes
    counts_in: str


NAMES: Mapping[BackendName, _Names] = {
    "gloo": _Names(
        "/libtorch_cpu.so",
        b"_ZTVN4c10d16ProcessGroupGlooE",
        b"_ZN4c10d16ProcessGroupGloo7nextTagEv",
        b"_ZZN4c10d14FlightRecorderIN3c105EventEE3getEvE8instance",
        "<I",
    ),
    "nccl": _Names(
        "/libtorch_cuda.so",
        b"_ZTVN4c10d16ProcessGroupNCCLE",
        b"_ZN4c10d16ProcessGroupNCCL25getSequenceNumberForGroupEv",
        b"_ZZN4c10d14FlightRecorderIN3c104cuda9CUDAEventEE3getEvE8instance",
        "<Q",
    ),
}
AFTER_VTABLE = 16
"""The offset in a virtual table of the address that the objects begin with (Itanium C++ ABI)."""
CODE_BYTES = 64
TAKES_NUMBER = re.compile(rb"\x8b[\x80-\x87](....)\x8d\x50\x01\x89[\x90-\x97]\1", re.DOTALL)
"""x86-64: ``mov eax, [object + offset]``, ``lea edx, [rax + 1]``, ``mov [object + offset], edx``."""
RETURNS_NUMBER = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\x48\x8b\x87(....)\xc3", re.DOTALL)
"""x86-64: ``mov rax, [rdi + offset]`` and ``ret``, which are the whole function."""
LOAD_4, STORE_4, LOAD_8, ARM_RETURN = 0b1011100101, 0b1011100100, 0b1111100101, 0xD65F03C0
"""aarch64: the first ten bits of a load and a store with an offset of twelve bits, and ``ret``."""
MAX_COUNTER_AT = 1 << 14


@dataclass(frozen=True)
class Backend:
    """A backend in one process.

    ``vtable`` is what its objects begin with; ``counter`` and ``counts_in`` are the offset and format of their counter.
    ``recorder`` is the address of the pointer to its flight recorder, 0 where the library has no symbol for that.
    """

    name: BackendName
    vtable: int
    counter: int
    counts_in: str
    recorder: int

    def count(self, memory: ProcessMemory, cpp: int) -> int:
        """The collectives that an object of it has entered. Raises :class:`UnreadableMemory`."""
        return int(memory.unpack(self.counts_in, cpp + self.counter)[0])


class TorchLibraries:
    """The libraries of torch that processes of this node have mapped, whose symbols are looked up once."""

    def __init__(self) -> None:
        self._symbols: dict[tuple[proc.File | None, BackendName], dict[bytes, int]] = {}

    def backends(self, memory: ProcessMemory) -> tuple[Backend, ...]:
        """Those of a process; without one whose code is not what is known."""
        mapped = list(proc.mapped_files(memory.pid).values())
        found = []
        for name, names in NAMES.items():
            library = next((one for one in mapped if one.path.endswith(names.library)), None)
            if library is not None and (backend := self._backend(memory, library, name)):
                found.append(backend)
        return tuple(found)

    def _backend(self, memory: ProcessMemory, library: proc.Mapping, name: BackendName) -> Backend | None:
        names, key = NAMES[name], (library.file, name)
        if key not in self._symbols:
            self._symbols[key] = dict(_symbols(f"/proc/{memory.pid}/root{library.path}", names))
        symbols, base = self._symbols[key], library.start
        if names.vtable not in symbols or names.counter not in symbols:
            return None
        with contextlib.suppress(UnreadableMemory):
            counter = counter_in(memory.read(base + symbols[names.counter], CODE_BYTES))
            if counter is not None:
                recorder = base + symbols[names.recorder] if names.recorder in symbols else 0
                vtable = base + symbols[names.vtable] + AFTER_VTABLE
                return Backend(name, vtable, counter, names.counts_in, recorder)
        return None


def _symbols(path: str, names: _Names) -> Iterator[tuple[bytes, int]]:
    """The symbols that a library has; the recorder is a static variable, which only the table for linkers has."""
    tables = {names.vtable: b".dynsym", names.counter: b".dynsym", names.recorder: b".symtab"}
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            library = Elf(file)
            for name, table in tables.items():
                with contextlib.suppress(LookupError, ValueError):
                    yield name, library.symbol(table, name)[1]
    except (OSError, ValueError, LookupError, struct.error):
        return


def counter_in(code: bytes, machine: str = "") -> int | None:
    """The offset of the counter that a function returns or takes a number of; None if its code is not known."""
    if (machine or platform.machine()) == "aarch64":
        offset = _counter_on_arm(struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4]))
    else:
        found = TAKES_NUMBER.search(code) or RETURNS_NUMBER.match(code)
        offset = int.from_bytes(found[1], "little", signed=True) if found else None
    return offset if offset is not None and 0 < offset < MAX_COUNTER_AT else None


def _counter_on_arm(code: tuple[int, ...]) -> int | None:
    """The same on aarch64: a load of 8 bytes and a return, or a load and a store of 4 bytes at one offset."""
    if len(code) > 1 and code[0] >> 22 == LOAD_8 and code[1] == ARM_RETURN:
        return _offset(code[0]) * 8
    body = tuple(takewhile(lambda word: word != ARM_RETURN, code))
    loads = [_offset(word) for word in body if word >> 22 == LOAD_4]
    stores = (_offset(word) for word in body if word >> 22 == STORE_4)
    return next((offset * 4 for offset in stores if offset in loads), None)


def _offset(word: int) -> int:
    """The offset that a load or store has, in units of its size."""
    return word >> 10 & 0xFFF
