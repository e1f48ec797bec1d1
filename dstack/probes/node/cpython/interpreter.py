"""The Python that a process runs: the reader's own, or another one that was identified from outside."""

from __future__ import annotations

import threading

from dstack.probes.node.cpython.debug_offsets import FIRST_VERSION, read_debug_offsets, with_debug_offsets
from dstack.probes.node.cpython.layout import Layout, calibrate, runtime_address
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable
from dstack.probes.node.cpython.objects import OWN_VERSION, Objects
from dstack.probes.node.cpython.saved_layouts import TABLES
from dstack.probes.node.procfs.proc import File, Mapping, place_in_file
from dstack.probes.node.wire import ForeignPython, UnreadablePython


class OwnPython:
    """The reader's own interpreter: its layout and the place of ``_PyRuntime`` in its file, found on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._layout: Layout | None = None
        self._place: tuple[File, int] | None = None

    def layout(self) -> Layout:
        """The layout of this interpreter. Raises :class:`Unreadable` where it is not as expected."""
        with self._lock:
            if self._layout is None:
                self._layout = calibrate()
            return self._layout

    def place(self) -> tuple[File, int] | None:
        """The file that has ``_PyRuntime``, and the distance from its beginning in memory."""
        with self._lock:
            if self._place is None:
                self._place = place_in_file(runtime_address())
            return self._place


class Interpreter:
    """The Python of a process, as far as it must be known to read the process's memory.

    ``foreign`` is what :mod:`dstack.probes.node_access.targets` found, None where it is the reader's own build;
    ``files`` are the files that the process has mapped. From CPython 3.13 on, the offsets that the target states itself
    replace those that were calibrated or saved. Methods raise :class:`Unreadable`, all of them with the same reason
    where dstack cannot read this Python.
    """

    def __init__(
        self, foreign: ForeignPython | UnreadablePython | None, own: OwnPython, files: dict[File, Mapping]
    ) -> None:
        self._foreign = foreign
        self._own = own
        self._files = files
        self._layout: Layout | None = None

    @property
    def unreadable(self) -> str | None:
        """Why dstack cannot read this Python, if it cannot."""
        return self._foreign["unreadable"] if self._foreign and "unreadable" in self._foreign else None

    def objects(self, memory: ProcessMemory) -> Objects:
        """The objects in the process's memory."""
        return Objects(memory, lambda: self.layout(memory).cached_keys, self._version())

    def layout(self, memory: ProcessMemory) -> Layout:
        """The layout of this Python, in a process with this memory; read once."""
        if self._layout is None:
            version = self._version()
            layout = TABLES[version] if self._foreign else self._own.layout()
            if version >= FIRST_VERSION:
                layout = with_debug_offsets(layout, read_debug_offsets(memory, self.runtime(), version))
            self._layout = layout
        return self._layout

    def runtime(self) -> int:
        """The address of ``_PyRuntime`` in the process."""
        foreign = self._identified()
        if foreign:
            return foreign["runtime"]
        place = self._own.place()
        file = self._files.get(place[0]) if place else None
        if place is None or file is None:
            raise Unreadable("it runs another build of Python than dstack")
        return file.start + place[1]

    def _version(self) -> tuple[int, int]:
        foreign = self._identified()
        return (foreign["version"][0], foreign["version"][1]) if foreign else OWN_VERSION

    def _identified(self) -> ForeignPython | None:
        if self._foreign is None:
            return None
        if "unreadable" in self._foreign:
            raise Unreadable(self._foreign["unreadable"])
        return self._foreign
