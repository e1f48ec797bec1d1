"""The modules that another process has imported, by name. Seen on CPython 3.10 to 3.14."""

from __future__ import annotations

from dstack.probes.node.cpython.cached_property import on_demand
from dstack.probes.node.cpython.frames import Frames
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.objects import Objects

MODULE_DICT = 16


class Modules:
    """The modules of one process. Every method raises :class:`Unreadable`."""

    def __init__(self, objects: Objects, frames: Frames, layout: Layout) -> None:
        self._objects = objects
        self._frames = frames
        self._layout = layout.coroutines
        self._dicts: dict[str, int] = {}

    @on_demand
    def _modules(self) -> int:
        return self._objects.memory.pointer(self._frames.interpreter + self._layout.interpreter_modules)

    def lookup(self, module: str, name: str) -> int:
        """The address of what a module has under a name, 0 where it has not, or was not imported."""
        if module not in self._dicts:
            found = self._objects.lookup(self._modules, module)
            self._dicts[module] = self._objects.memory.pointer(found + MODULE_DICT) if found else 0
        return self._objects.lookup(self._dicts[module], name) if self._dicts[module] else 0
