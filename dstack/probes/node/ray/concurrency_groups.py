"""The concurrency groups of an actor's methods, as declared with ``@ray.method(concurrency_group=...)``.

Read from the functions of the live class, on which Ray sets the group's name as an attribute. Seen on Ray 2.46 and 2.60
and CPython 3.10 to 3.14.
"""

from __future__ import annotations

from collections.abc import Iterable

from dstack.probes.node.cpython.objects import TYPE, Objects
from dstack.probes.node.cpython.process import Modules
from dstack.probes.node.threads import AnyThread, function_of

EXECUTOR = "actor_method_executor"
"""The function that calls an actor's method."""
GROUP = "__ray_concurrency_group__"
BASE, CLASS_DICT = 256, 264
"""The offsets of a type's base and its dict; CPython 3.10 to 3.14."""
MAX_BASES = 64


def runs_methods(threads: Iterable[AnyThread]) -> bool:
    """Whether one of the threads is in a method of an actor."""
    return any(function_of(frame) == EXECUTOR for thread in threads for frame in thread.frames)


def concurrency_groups(modules: Modules, objects: Objects) -> dict[str, str] | None:
    """The declared groups by method, of a worker's actor; None where it has none.

    Raises :class:`Unreadable`.
    """
    instance = actor_instance(modules, objects)
    return _declared(objects.memory.pointer(instance + TYPE), objects) if instance else None


def actor_instance(modules: Modules, objects: Objects) -> int | None:
    """The address of a worker's actor; None where it has none.

    Ray's worker keeps its single instance, also while it is idle. Raises :class:`Unreadable`.
    """
    worker = modules.lookup("ray._private.worker", "global_worker")
    actors = objects.attributes(worker).get("actors") if worker else None
    instances = objects.entries(actors) if actors else []
    return instances[0][1] if len(instances) == 1 else None


def _declared(kind: int, objects: Objects) -> dict[str, str]:
    """The groups of a class and its bases; a class takes precedence over its base."""
    groups: dict[str, str] = {}
    for _ in range(MAX_BASES):
        for name, method in objects.named(objects.memory.pointer(kind + CLASS_DICT)).items():
            if name not in groups and objects.is_a(method, "function"):
                groups[name] = _group(method, objects)
        kind = objects.memory.pointer(kind + BASE)
        if not kind:
            break
    return {name: group for name, group in groups.items() if group}


def _group(method: int, objects: Objects) -> str:
    group = objects.attributes(method).get(GROUP)
    return objects.text(group) if group else ""
