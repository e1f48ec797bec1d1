"""The Python that a process runs: the reader's own, or another of which it was found out from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dstack.probes.node.cpython.debug_offsets import FIRST_VERSION, read_debug_offsets, with_debug_offsets
from dstack.probes.node.cpython.layout import Layout, runtime_address
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable
from dstack.probes.node.cpython.objects import OWN_VERSION, Objects
from dstack.probes.node.cpython.saved_layouts import TABLES
from dstack.probes.node.procfs.proc import address_in

Plain = dict[str, Any]


class Interpreter:
    """What must be known of a process's Python for its memory to be read.

    ``found`` is what :mod:`dstack.probes.foreign_pythons` tells of it, None where it is the reader's own;
    ``own_layout`` gives the layout of the latter. From CPython 3.13 on, what the target states itself goes before that
    layout and before the saved ones. Methods raise :class:`Unreadable`, all of them with the same reason where dstack
    cannot read this Python.
    """

    def __init__(self, found: Plain | None, own_layout: Callable[[], Layout]) -> None:
        self._found = found
        self._own_layout = own_layout
        self._runtime: int | None = None
        self._layout: Layout | None = None

    @property
    def refused(self) -> str | None:
        """Why dstack cannot read this Python, if it cannot."""
        return self._found.get("refused") if self._found else None

    def objects(self, memory: ProcessMemory) -> Objects:
        """The objects in the process's memory."""
        return Objects(memory, lambda: self.layout(memory).cached_keys, self._version())

    def layout(self, memory: ProcessMemory) -> Layout:
        """Where this Python keeps what, in a process with this memory; read once."""
        if self._layout is None:
            version = self._version()
            layout = TABLES[version] if self._found else self._own_layout()
            if version >= FIRST_VERSION:
                offsets = read_debug_offsets(memory, self.runtime(memory.pid), version)
                layout = with_debug_offsets(layout, offsets)
            self._layout = layout
        return self._layout

    def runtime(self, pid: int) -> int:
        """Where the process has its ``_PyRuntime``; looked for once."""
        self._version()
        if self._runtime is None:
            self._runtime = self._found["runtime"] if self._found else address_in(pid, runtime_address())
        if self._runtime is None:
            raise Unreadable("it runs another build of Python than dstack")
        return self._runtime

    def _version(self) -> tuple[int, int]:
        if self.refused:
            raise Unreadable(self.refused)
        if self._found is None:
            return OWN_VERSION
        major, minor = self._found["version"]
        return major, minor
