"""In which concurrency group an actor's methods run, as its class declares with ``@ray.method(concurrency_group=...)``.

Read from the functions of the live class: Ray leaves the group's name there as an attribute. Seen on Ray 2.46 and 2.60
and CPython 3.10 to 3.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from dstack.probes.node.memory import Unreadable
from dstack.probes.node.modules import Modules
from dstack.probes.node.objects import TYPE, Objects
from dstack.probes.node.places import RawFrame, function_of
from dstack.probes.node.pyspy import RawThread

EXECUTOR, ACTOR = "actor_method_executor", "__ray_actor"
"""The function that calls an actor's method, and how its local that holds the actor ends, whose name is mangled."""
GROUP = "__ray_concurrency_group__"
BASE, CLASS_DICT = 256, 264
"""Where a type keeps its base and its dict; CPython 3.10 to 3.13."""
MAX_BASES = 64


def concurrency_groups(threads: Iterable[RawThread], objects: Objects) -> dict[str, str] | None:
    """The declared groups by method, of the actor whose method one of the threads runs; None where none can be read."""
    actor = next((found for thread in threads for frame in thread["frames"] if (found := _actor(frame))), None)
    if actor is None:
        return None
    try:
        return _declared(objects.memory.pointer(actor + TYPE), objects)
    except Unreadable:
        return None


def groups_of_worker(modules: Modules, objects: Objects) -> dict[str, str] | None:
    """The same of the actor that a worker is, also while it runs nothing: Ray's worker keeps its one instance."""
    worker = modules.lookup("ray._private.worker", "global_worker")
    actors = objects.attributes(worker).get("actors") if worker else None
    instances = objects.entries(actors) if actors else []
    return _declared(objects.memory.pointer(instances[0][1] + TYPE), objects) if len(instances) == 1 else None


def _actor(frame: RawFrame) -> int | None:
    if function_of(frame) != EXECUTOR:
        return None
    return next((int(local["addr"]) for local in frame["locals"] or () if str(local["name"]).endswith(ACTOR)), None)


def _declared(kind: int, objects: Objects) -> dict[str, str]:
    """Of a class and its bases; what a class declares goes before what its base does."""
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
