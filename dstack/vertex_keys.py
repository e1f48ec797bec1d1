"""The identity of a vertex in the wait-for graph: its kind and the ids of what it is, never its name.

Equal keys in two samples, or in two snapshots of one cluster, are the same thing. Keys are hashed and compared for each
edge of a graph, so they are structs that cache their hash. ``str()`` of a key is stable text for files, widgets and a
stable order; nothing parses it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Unknown = Literal[
    "actor",
    "argument",
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
    "other side",
    "placement group",
    "process",
    "retry",
    "room",
    "scheduler",
    "scheduler state",
    "setup",
    "slot",
    "stack",
    "start of actor",
    "step",
    "target",
    "thread",
    "value",
    "worker",
]
"""What a vertex is whose own waits are not known."""


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
    """A task that is not known to run on one certain thread, or as one certain coroutine."""

    task_id: str

    def __str__(self) -> str:
        return f"task:{self.task_id}"


class DriverKey(Key, frozen=True, cache_hash=True, gc=False):
    """A driver without stacks."""

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
    """A helper: any of many that are waited for in the same way, room on a node, an actor's end."""

    what: str
    ids: tuple[Id, ...]

    def __str__(self) -> str:
        return f"any:{self.what}/{_text(self.ids)}"


class UnknownKey(Key, frozen=True, cache_hash=True, gc=False):
    """A dependency whose own waits are not known."""

    what: Unknown
    ids: tuple[Id, ...] = ()

    def __str__(self) -> str:
        return f"unknown:{self.what}/{_text(self.ids)}"

    @property
    def is_scheduler(self) -> bool:
        """Whether it is the scheduler, for a request that it could place."""
        return self.what == "scheduler"

    @property
    def is_setup(self) -> bool:
        """Whether it is the installation of a runtime environment."""
        return self.what == "setup"

    @property
    def is_available_value(self) -> bool:
        """Whether it is a value that is there already."""
        return self.what == "fetched value"


class ChildThreadKey(Key, frozen=True, cache_hash=True, gc=False):
    """A thread of a process that a worker has started; its main thread stands for the process."""

    worker_id: str
    pid: int
    os_thread_id: int

    def __str__(self) -> str:
        return f"child:{self.worker_id}/{self.pid}/{self.os_thread_id}"


def _text(ids: tuple[Id, ...]) -> str:
    return "/".join(map(str, ids))
