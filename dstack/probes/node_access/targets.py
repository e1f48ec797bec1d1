"""The targets of a node's probe, and which Python a process of this host runs, if it is another than dstack's own.

dstack may have its own environment, under another minor version than the cluster's. A process of that version is read
by the table of layouts (:mod:`dstack.probes.node.cpython.layouts`), from CPython 3.13 on with the offsets that the
process itself states. Other nodes do not need this: the probe there runs in a worker of the cluster, under the
cluster's own Python.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any

import psutil

from dstack.model.snapshot import Worker
from dstack.probes.connection.hosts import canonical
from dstack.probes.node import wire
from dstack.probes.node.cpython.debug_offsets import (
    CANDIDATE,
    FIRST_VERSION,
    HEADER_SIZE,
    read_debug_offsets,
    require_version,
)
from dstack.probes.node.cpython.layouts import LAYOUTS
from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.python_process import runtime_address
from dstack.probes.node.procfs.proc import Mapping, address_in, machine, mappings


@dataclass(frozen=True)
class MappedFile:
    """A file by its device and inode, and a path to open it, also for a process in a container."""

    key: tuple[str, str] | None
    path: str = field(compare=False)

    @classmethod
    def of(cls, mapping: Mapping, pid: int) -> MappedFile:
        """The file of a mapping of a process."""
        return cls(mapping.file, f"/proc/{pid}/root{mapping.path}")


def targets(workers: Iterable[Worker]) -> list[wire.ReadTarget]:
    """The workers as targets of :class:`dstack.probes.node.probe.NodeProbe`."""
    return [{"worker_id": w.worker_id, "pid": w.pid, "port": w.port, "is_driver": w.is_driver} for w in workers]


def log_targets(workers: Sequence[Worker]) -> list[wire.LogTarget]:
    """The workers as processes with logs."""
    return [{"process": target, "node_id": w.node_id} for w, target in zip(workers, targets(workers), strict=True)]


def with_environment(target: wire.ReadTarget) -> wire.ReadTarget:
    """A target on this host, with its Python if it runs another one than dstack."""
    python = foreign_python(target["pid"])
    return {**target, "python": python} if python else target


def own_addresses() -> set[str]:
    """All IP addresses of this host, in their canonical spelling."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = (one for group in psutil.net_if_addrs().values() for one in group if one.family in families)
    return {canonical(one.address) for one in found}


Python = wire.ForeignPython | wire.UnreadablePython

NAME = re.compile(r"(?:lib)?python(\d)\.(\d+)")
LIBRARY = re.compile(r"libpython\d\.\d+\w*\.so[.\d]*")
NOT_FOUND = "no CPython with symbols was found in it"
GLIBC = "libc.so.6"
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
DEBUG_SYMBOL = "_Py_NegativeRefcount"
"""A symbol of builds that count references for debugging, which have other layouts."""


def foreign_python(pid: int) -> Python | None:
    """How to read the memory of a process; None if it runs dstack's own build, or cannot be inspected.

    ``version`` and ``runtime``, the address of its ``_PyRuntime``; or why it is ``unreadable``. For dstack's own
    program this takes 10 us; reading all mapped files takes 1 to 2 ms.
    """
    try:
        if os.path.samefile(f"/proc/{pid}/exe", "/proc/self/exe") or address_in(pid, runtime_address()) is not None:
            return None
        return _if_it_agrees(_inspect(pid, os.readlink(f"/proc/{pid}/exe")), pid)
    except OSError:
        return None


def _if_it_agrees(found: Python, pid: int) -> Python:
    """The interpreter found in the files of a process, unless the process itself states another one in memory."""
    if "unreadable" in found or found["version"] < FIRST_VERSION:
        return found
    try:
        with open_memory(pid) as memory:
            read_debug_offsets(memory, found["runtime"], found["version"])
    except UnreadableMemory as error:
        return {"unreadable": str(error)}
    except OSError:  # its memory may not be read: the probe says so for all of it
        return found
    return found


def _inspect(pid: int, program: str) -> Python:
    """The interpreter in the program, else in a library."""
    begins = [one for one in mappings(pid) if one.file and one.offset == 0]
    programs = [one for one in begins if one.path == program]
    libraries = [one for one in begins if LIBRARY.fullmatch(PurePath(one.path).name)]
    found = _interpreters(pid, programs) or _interpreters(pid, libraries)
    if len(found) > 1:
        return {"unreadable": "it contains more than one Python"}
    return next(iter(found.values()), None) or {"unreadable": NOT_FOUND}


def _interpreters(pid: int, files: list[Mapping]) -> dict[tuple[str, str] | None, Python]:
    """The interpreters in the files."""
    found: dict[tuple[str, str] | None, Python] = {}
    for one in files:
        image = _image(MappedFile.of(one, pid))
        if image and one.file not in found:
            found[one.file] = image if "unreadable" in image else {**image, "runtime": one.start + image["runtime"]}
    return found


@cache
def _image(file: MappedFile) -> Python | None:
    """As :func:`foreign_python`, with ``runtime`` relative to the file's beginning in memory; None if not CPython."""
    from elftools.common.exceptions import ELFError  # loaded only for a process under another Python
    from elftools.elf.elffile import ELFFile

    try:
        with open(file.path, "rb") as stream:
            return Image(ELFFile(stream), PurePath(file.path).name).found()
    except OSError as error:
        return {"unreadable": f"its Python, {file.path}, cannot be opened: {error.strerror}"}
    except (ELFError, StopIteration, UnicodeDecodeError) as error:
        return {"unreadable": f"its Python, {file.path}, has an unexpected layout: {error}"}


class Image:
    """An ELF file that may contain CPython. Raises ``ELFError`` or ``StopIteration`` for another layout."""

    def __init__(self, elf: Any, name: str) -> None:
        self._elf = elf
        self._name = name
        self._runtime = self._symbol("_PyRuntime")

    def found(self) -> Python | None:
        """Its version and ``_PyRuntime``, or why it is unreadable; None without CPython."""
        if self._runtime is None:
            return None
        version, level = self._version()
        if version is None:
            return {"unreadable": "it runs a Python of an unknown version"}
        refusal = self._refusal(version, level)
        if refusal:
            return {"unreadable": refusal}
        first = next(one for one in self._elf.iter_segments("PT_LOAD") if one["p_offset"] == 0)
        return {"version": version, "runtime": self._runtime - first["p_vaddr"]}

    def _refusal(self, version: tuple[int, int], level: int) -> str | None:
        """Why the layout of this version does not apply to the interpreter, or None."""
        kind = self._other_kind(version, level)
        if kind or version not in LAYOUTS:
            return f"it runs {kind}Python {version[0]}.{version[1]}, which dstack cannot read"
        if version < FIRST_VERSION:
            return None
        assert self._runtime is not None
        try:
            require_version(self._data(self._runtime, HEADER_SIZE), version)
        except UnreadableMemory as error:
            return str(error)
        return None

    def _version(self) -> tuple[tuple[int, int] | None, int]:
        """The minor version and the level of the release: ``Py_Version``, or on 3.10 in the name of the file."""
        at = self._symbol("Py_Version")
        if at is not None:
            number = int.from_bytes(self._data(at, 8), "little")
            return (number >> 24 & 0xFF, number >> 16 & 0xFF), number >> 4 & 0xF
        named = NAME.match(self._name)
        version = (int(named[1]), int(named[2])) if named else None
        return (version if version and version < (3, 11) else None), CANDIDATE

    def _other_kind(self, version: tuple[int, int], level: int) -> str:
        """The name of the interpreter's kind, if the layouts of releases do not apply to it."""
        if self._elf["e_machine"] != MACHINES.get(machine()) or GLIBC not in self._needed():
            return "another platform's "
        if level < CANDIDATE:
            return "a pre-release of "
        if self._symbol(DEBUG_SYMBOL) is not None:
            return "a debug build of "
        return ""

    def _needed(self) -> list[str]:
        return [tag.needed for tag in self._elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]

    def _symbol(self, name: str) -> int | None:
        """A dynamic symbol, found by its hash: a search through all symbols takes seconds."""
        symbols = self._elf.get_section_by_name(".gnu.hash") or self._elf.get_section_by_name(".hash")
        symbol = symbols and symbols.get_symbol(name)
        return int(symbol["st_value"]) if symbol else None

    def _data(self, address: int, size: int) -> bytes:
        """The bytes of the file at an address in memory."""
        self._elf.stream.seek(next(self._elf.address_offsets(address, size)))
        return bytes(self._elf.stream.read(size))
