"""Context variables of asyncio tasks, which hold the Ray task that each belongs to.

A context keeps its variables in a hash array mapped trie, laid out alike in CPython 3.10 to 3.14.
"""

from __future__ import annotations

from collections.abc import Iterator

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import SIZE
from dstack.probes.node.cpython.process import PythonProcess

RAY_TASK = "async_task_id"
"""The variable that Ray sets to the id of the task for which it runs a coroutine; seen on Ray 2.46 and 2.60."""
TASK_ID_TYPES = ("ray._raylet.TaskID", "ray.TaskID")
TASK_ID, TASK_ID_SIZE = 32, 24

ROOT, CHILDREN, PAIRS = 16, 16, 32
BRANCHES = 32
MAX_NODES = 10_000


class Contexts:
    """The contexts of one process. Every method raises :class:`Unreadable`."""

    def __init__(self, process: PythonProcess) -> None:
        self._objects = process.objects
        self._memory = process.memory
        self._layout = process.layout.coroutines
        self._names: dict[int, str] = {}

    def ray_task(self, task: int) -> str | None:
        """The id of the Ray task in whose context an asyncio task runs, None for none."""
        context = self._memory.pointer(task + self._layout.task_context)
        if not self._objects.is_a(context, "Context", "_contextvars.Context"):
            return None
        for variable, value in self._variables(context):
            if self._name(variable) == RAY_TASK and self._objects.is_a(value, *TASK_ID_TYPES):
                return self._memory.read(value + TASK_ID, TASK_ID_SIZE).hex()
        return None

    def _name(self, variable: int) -> str:
        if variable not in self._names:
            self._names[variable] = self._objects.text(self._memory.pointer(variable + self._layout.variable_name))
        return self._names[variable]

    def _variables(self, context: int) -> Iterator[tuple[int, int]]:
        """Variables and their values."""
        root = self._memory.pointer(self._memory.pointer(context + self._layout.context_variables) + ROOT)
        nodes = [root] if root else []
        for _ in range(MAX_NODES):
            if not nodes:
                return
            node = nodes.pop()
            if "array" in self._objects.type_name(node):
                nodes += [child for child in self._memory.pointers(node + CHILDREN, BRANCHES) if child]
                continue
            words = self._pairs(node)
            for key, value in zip(words[::2], words[1::2], strict=True):
                if key:
                    yield key, value
                elif value:
                    nodes.append(value)
        raise Unreadable(f"a context of more than {MAX_NODES} parts")

    def _pairs(self, node: int) -> tuple[int, ...]:
        """Words in pairs: a variable and its value, or 0 and a further node."""
        count = self._memory.int64(node + SIZE)
        if not 0 <= count <= 2 * BRANCHES or count % 2:
            raise Unreadable(f"a part of a context of {count} words")
        return self._memory.pointers(node + PAIRS, count)
