"""The modules that another process has imported, by name. Seen on CPython 3.10 to 3.14."""

from __future__ import annotations

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.frames import Frames
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.objects import Objects

MODULE_DICT = 16

_USUAL = """
threading asyncio.tasks ray._private.worker uvloop _active global_worker _scheduled_tasks _all_tasks _current_tasks
os ray.util.collective.collective _group_mgr torch.distributed.distributed_c10d _world _default_pg_init_method
_pg_group_ranks _pg_names _pg_backend_config dstack.labels LABELS ray.train.v2._internal.execution.context
"""
USUAL = frozenset(_USUAL.split())
"""Names of modules and their attributes that are usually requested: one search finds all of them."""


class Modules:
    """The modules of one process. Every method raises :class:`Unreadable`.

    ``places`` caches the position of a name in a dict, so that large dicts are searched once for a process. For a
    missing name it has ``-1 - entries`` of the dict. Both are validated.
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
            found = self._value(self._modules, module)
            self._dicts[module] = self._objects.memory.pointer(found + MODULE_DICT) if found else 0
        return self._value(self._dicts[module], name) if self._dicts[module] else 0

    def has(self, module: str) -> bool:
        """Whether a module was imported."""
        return bool(self._value(self._modules, module))

    def _value(self, table: int, name: str) -> int:
        """The address of the value under a name in a dict, 0 where there is none."""
        place = self._places.get((table, name))
        used = self._objects.size(table, "dict")
        if place == -1 - used:
            return 0
        found = self._objects.value_at(table, place, name) if place is not None else 0
        if found:
            return found
        places = self._objects.places_of(table, {name, *USUAL})
        self._places.update({(table, one): places.get(one, -1 - used) for one in (name, *USUAL)})
        return self._objects.value_at(table, places[name], name) if name in places else 0
