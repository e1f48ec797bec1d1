"""The identity of a vertex in the wait-for graph: its kind and ids, never its name.

Equal keys in two samples, or in two snapshots of one cluster, identify the same vertex. Keys are hashed and compared
for each edge of a graph, so they are structs that cache their hash. ``str()`` of a key is stable text for files,
widgets and a stable order; nothing parses it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Unknown = Literal[
    "actor",
    "argument",
    "argument memory",
    "autoscaler",
    "caller",
    "channel",
    "consumer",
    "coroutine",
    "creation",
    "driver",
    "end of job",
    "ender",
    "error",
    "executor",
    "fetched value",
    "holder",
    "library",
    "lookup",
    "new node",
    "other side",
    "placement group",
    "process",
    "removed group",
    "retry",
    "room",
    "scheduler",
    "scheduler state",
    "setup",
    "signal",
    "slot",
    "stack",
    "start of actor",
    "step",
    "target",
    "thread",
    "timer",
    "transfer of arguments",
    "value",
    "worker",
]
"""The kinds of vertices whose waits are unknown."""

Helper = Literal[
    "Serve slot",
    "actor slot",
    "arguments",
    "cancellers",
    "end of actor",
    "event loop",
    "future",
    "held",
    "holders",
    "job",
    "left",
    "order",
    "process",
    "rank",
    "ranks",
    "reach of",
    "ready",
    "removal",
    "room",
    "silent",
    "tasks of",
    "thread",
    "whole",
]
"""The kinds of helpers."""


class Key(Struct, frozen=True, cache_hash=True, gc=False):
    """Base of all keys."""


class ThreadKey(Key, frozen=True, cache_hash=True, gc=False):
    """A thread of a worker or driver."""

    worker_id: str
    os_thread_id: int

    def __str__(self) -> str:
        return f"thread:{self.worker_id}/{self.os_thread_id}"


class CoroutineKey(Key, frozen=True, cache_hash=True, gc=False):
    """An asyncio task of a worker or driver."""

    worker_id: str
    coroutine_id: str

    def __str__(self) -> str:
        return f"coroutine:{self.worker_id}/{self.coroutine_id}"


class TaskKey(Key, frozen=True, cache_hash=True, gc=False):
    """A task whose thread or coroutine is unknown, or that does not run."""

    task_id: str

    def __str__(self) -> str:
        return f"task:{self.task_id}"


class DriverKey(Key, frozen=True, cache_hash=True, gc=False):
    """A driver whose stacks could not be read."""

    worker_id: str

    def __str__(self) -> str:
        return f"driver:{self.worker_id}"


class GroupKey(Key, frozen=True, cache_hash=True, gc=False):
    """A placement group."""

    placement_group_id: str

    def __str__(self) -> str:
        return f"group:{self.placement_group_id}"


Id: TypeAlias = "str | int | float | Key | tuple[Id, ...] | None"


class AnyKey(Key, frozen=True, cache_hash=True, gc=False):
    """A helper: a vertex that represents several others, room on a node, or the end of an actor."""

    what: Helper
    ids: tuple[Id, ...]

    def __str__(self) -> str:
        return f"any:{self.what}/{_text(self.ids)}"


class UnknownKey(Key, frozen=True, cache_hash=True, gc=False):
    """A dependency whose waits are unknown."""

    what: Unknown
    ids: tuple[Id, ...] = ()

    def __str__(self) -> str:
        return f"unknown:{self.what}/{_text(self.ids)}"

    @property
    def is_scheduler(self) -> bool:
        """Whether it is the scheduler, for a request whose resources are free."""
        return self.what in ("scheduler", "argument memory", "transfer of arguments")

    @property
    def is_new_node(self) -> bool:
        """Whether it is a node that may still join, with what no present node has."""
        return self.what == "new node"

    @property
    def is_signal(self) -> bool:
        """Whether it is the handler of a signal, which something outside may send."""
        return self.what == "signal"

    @property
    def is_setup(self) -> bool:
        """Whether it is the installation of a runtime environment."""
        return self.what == "setup"

    @property
    def is_available_value(self) -> bool:
        """Whether it is a value that is available already."""
        return self.what == "fetched value"


class ChildThreadKey(Key, frozen=True, cache_hash=True, gc=False):
    """A thread of a child process of a worker; the main thread represents the process."""

    worker_id: str
    pid: int
    os_thread_id: int

    def __str__(self) -> str:
        return f"child:{self.worker_id}/{self.pid}/{self.os_thread_id}"


def _text(ids: tuple[Id, ...]) -> str:
    return "/".join(map(str, ids))
