"""The user's modules that code of a module reaches through imports, directly or indirectly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import MODULE_DICT, PythonProcess
from dstack.probes.node.threads import Frame, Position, ShownFrame

MAX_MODULES = 30
"""The maximum number of the user's modules that one module reaches."""
MAX_GLOBALS = 512
FIRST_NAMES = 10
"""A module's file is among the first names that the import system gives it; CPython 3.10 to 3.14."""


class UserModules:
    """The user's modules of one process, by the addresses of their dicts. Nothing is raised."""

    def __init__(self, process: PythonProcess, is_user: Callable[[Frame], bool]) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._is_user = is_user
        self._imports: dict[int, list[int]] = {}
        self._is_users: dict[int, bool] = {}
        self._reached: dict[int, set[int]] = {}

    def reached_from(self, module: int) -> set[int]:
        """A module and those of the user that it reaches, directly or through others."""
        if module not in self._reached:
            self._reached[module] = self._search(module)
        return self._reached[module]

    def _search(self, module: int) -> set[int]:
        found = {module}
        ahead = [module]
        while ahead and len(found) < MAX_MODULES:
            new = [one for one in self._imported_by(ahead.pop()) if one not in found]
            found.update(new[: MAX_MODULES - len(found)])
            ahead += new
        return found

    def _imported_by(self, module: int) -> list[int]:
        if module not in self._imports:
            self._imports[module] = [one for one in self._modules_in(module) if self._is_of_user(one)]
        return self._imports[module]

    def _modules_in(self, module: int) -> Iterator[int]:
        """The dicts of the modules among a module's globals."""
        with contextlib.suppress(Unreadable):
            values = self._objects.first_entries(module, MAX_GLOBALS)
            self._memory.prefetch(values)
            modules = [value for value in values if self._objects.is_a(value, "module")]
            yield from (self._memory.pointer(one + MODULE_DICT) for one in modules)

    def _is_of_user(self, module: int) -> bool:
        if module not in self._is_users:
            self._is_users[module] = self._is_user(ShownFrame(Position(self._file(module), "", "", 0)))
        return self._is_users[module]

    def _file(self, module: int) -> str:
        """The path of a module's file, empty where it has none."""
        with contextlib.suppress(Unreadable):
            file = self._objects.first_named(module, FIRST_NAMES).get("__file__", 0)
            return self._objects.text(file) if self._objects.is_a(file, "str") else ""
        return ""
