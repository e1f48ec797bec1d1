"""The modules that another process has imported, by name. Seen on CPython 3.10 to 3.14."""

from __future__ import annotations

from dstack.probes.node.cpython.cached_property import cached_property
from dstack.probes.node.cpython.frames import Frames
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.objects import Objects

MODULE_DICT = 16
DICT_USED = 16
"""The offset of the number of entries in a dict; CPython 3.10 to 3.14."""


class Modules:
    """The modules of one process. Every method raises :class:`Unreadable`.

    ``places`` has the place in a dict where a name was found, so that a large dict is searched once for a process.
    """

    def __init__(
        self, objects: Objects, frames: Frames, layout: Layout, places: dict[tuple[int, str], int] | None = None
    ) -> None:
        self._objects = objects
        self._frames = frames
        self._layout = layout.coroutines
        self._dicts: dict[str, int] = {}
        self._places = {} if places is None else places

    @cached_property
    def _modules(self) -> int:
        return self._objects.memory.pointer(self._frames.interpreter + self._layout.interpreter_modules)

    def lookup(self, module: str, name: str) -> int:
        """The address of a module's attribute, 0 where there is none or the module was not imported."""
        if module not in self._dicts:
            found = self._objects.lookup(self._modules, module, self._places)
            self._dicts[module] = self._objects.memory.pointer(found + MODULE_DICT) if found else 0
        return self._objects.lookup(self._dicts[module], name, self._places) if self._dicts[module] else 0

    def has(self, module: str) -> bool:
        """Whether a module was imported. If not, it is searched again only when the number of modules has changed."""
        count = self._objects.memory.int64(self._modules + DICT_USED)
        absent = (self._modules, f"no {module}")
        if self._places.get(absent) == count:
            return False
        if self._objects.lookup(self._modules, module, self._places):
            return True
        self._places[absent] = count
        return False
