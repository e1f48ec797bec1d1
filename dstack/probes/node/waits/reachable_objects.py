"""The threads and coroutines of a process that reach the objects which others of it wait on.

One search for all these objects at once: from the variables of all frames and the globals of the user's modules, level
by level through the references of objects. It is bounded, so what it finds are candidates, perhaps not all.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import PythonProcess
from dstack.probes.node.cpython.references import References
from dstack.probes.node.ray.concurrency_groups import actor_instance
from dstack.probes.node.stacks.roles import RAY_WORKER_FILE
from dstack.probes.node.threads import Frame as AnyFrame
from dstack.probes.node.threads import is_in
from dstack.probes.node.waits.reached import Reached
from dstack.probes.node.waits.shared_objects import WaitsOn
from dstack.probes.node.waits.user_modules import UserModules

MAX_DEPTH = 3
"""References from a variable to the object: ``self``, its ``state``, a dict there, the object."""
MAX_EXAMINED = 20_000
"""Objects whose type is read, in all."""
MAX_COROUTINES = 5_000
MAX_HANDLES = 1_000
MAX_FOLLOWED = 256
"""Of one object's references the first so many are followed; further ones can only be the object itself."""

Labels = dict[int, set[int]]
"""The objects waited on that an object leads to, by its address."""


THREAD, COROUTINE, ACTOR = "thread", "coroutine", "actor"
Root = tuple[str, int]
"""One of these kinds, and the OS id of a thread or the address of a coroutine or of an actor's instance."""


@dataclass(frozen=True)
class Roots:
    """Where a thread or coroutine begins to reach objects: its variables, and the dicts of the user's modules."""

    variables: set[int]
    globals: Collection[int] = ()


def what_reaches(
    process: PythonProcess,
    thread_waits: Mapping[int, WaitsOn],
    coroutine_waits: Mapping[int, WaitsOn],
    coroutines: Mapping[int, Sequence[Frame]],
    is_user: Callable[[AnyFrame], bool],
) -> Reached:
    """What reaches the objects of these waits, of threads by OS id and of coroutines by address.

    ``coroutines`` are the frames of the suspended ones. Nothing is raised.
    """
    wanted = {one for waits in (thread_waits, coroutine_waits) for on in waits.values() for one in on.objects}
    reached = Reached(thread_waits=thread_waits, coroutine_waits=coroutine_waits)
    if len(coroutines) > MAX_COROUTINES:
        return reached
    with process.memory.temporary():
        roots = _all_roots(process, coroutines, is_user)
    for (kind, key), objects in Search(process, wanted).reach(roots).items():
        for item in objects:
            if kind == ACTOR:
                reached.by_actor.add(item)
            else:
                table = reached.threads if kind == THREAD else reached.coroutines
                table.setdefault(item, set()).add(key)
    return reached


def _all_roots(
    process: PythonProcess, coroutines: Mapping[int, Sequence[Frame]], is_user: Callable[[AnyFrame], bool]
) -> dict[Root, Roots]:
    modules = UserModules(process, is_user)

    def roots_of(frames: Sequence[Frame]) -> Roots:
        own = _modules(frame for frame in frames if is_user(frame))
        return Roots(_variables(frames), {reached for module in own for reached in modules.reached_from(module)})

    roots: dict[Root, Roots] = {}
    for thread in process.threads:
        if thread.os_thread_id:
            roots[THREAD, thread.os_thread_id] = roots_of(thread.frames)
            roots[THREAD, thread.os_thread_id].variables.update(_handles(thread.frames, process))
    roots.update({(COROUTINE, address): roots_of(frames) for address, frames in coroutines.items()})
    return {**roots, **_actor(process)}


def _handles(frames: Sequence[Frame], process: PythonProcess) -> Iterator[int]:
    """The callbacks that an event loop of asyncio's own will make, if one runs in these frames."""
    for frame in frames:
        if is_in(frame, "/asyncio/base_events.py", "run_forever"):
            with contextlib.suppress(Unreadable):
                attributes = process.objects.attributes(frame.local("self"))
                yield from process.objects.items(attributes.get("_scheduled", 0), MAX_HANDLES)
                yield from itertools.islice(process.objects.deque_items(attributes.get("_ready", 0)), MAX_HANDLES)


def _actor(process: PythonProcess) -> dict[Root, Roots]:
    with contextlib.suppress(Unreadable):
        instance = actor_instance(process.modules, process.objects)
        return {(ACTOR, instance): Roots({instance})} if instance else {}
    return {}


class Search:
    """The search for objects from all threads, coroutines and the actor of one process. Nothing is raised."""

    def __init__(self, process: PythonProcess, wanted: Collection[int]) -> None:
        self._memory = process.memory
        self._references = References(process)
        self._wanted = wanted
        self._found: dict[int, Sequence[int]] = {}
        self._examined: set[int] = set()

    def reach(self, roots: Mapping[Root, Roots]) -> dict[Root, set[int]]:
        """The objects wanted that each of these roots leads to; none for those that lead to none."""
        with self._memory.temporary():
            self._expand(roots.values())
        labels = self._labels()
        found = {}
        for key, root in roots.items():
            reached = {item for one in (*root.variables, *root.globals) for item in labels.get(one, ())}
            if reached:
                found[key] = reached
        return found

    def _expand(self, roots: Iterable[Roots]) -> None:
        """Read the references of objects, level by level; those of globals count as one level further."""
        level: set[int] = set()
        modules: set[int] = set()
        for root in roots:
            level.update(root.variables)
            modules.update(root.globals)
        for depth in range(MAX_DEPTH):
            level |= modules if depth else set()
            level -= self._examined
            level = self._read(itertools.islice(level, max(0, MAX_EXAMINED - len(self._examined))))

    def _read(self, level: Iterable[int]) -> set[int]:
        """Read the references of objects; returns those that they lead to."""
        addresses = list(level)
        self._examined.update(addresses)
        found = self._references.of_all(addresses)
        self._found.update(found)
        following: set[int] = set()
        for references in found.values():
            following.update(references[:MAX_FOLLOWED])
        return following

    def _labels(self) -> Labels:
        """What leads to the objects wanted, from these back, one reference at a time."""
        labels: Labels = {one: {one} for one in self._wanted}
        for _ in range(MAX_DEPTH):
            known = set(labels)
            new: Labels = {}
            for address, references in self._found.items():
                if not known.isdisjoint(references):
                    new[address] = {item for one in known.intersection(references) for item in labels[one]}
            for address, items in new.items():
                labels[address] = labels.get(address, set()) | items
        return labels


def _variables(frames: Iterable[Frame]) -> set[int]:
    """What the variables of these frames refer to, as far as they can be read.

    Ray's own worker object, which the main thread of every worker has, leads to the actor: that is searched by itself.
    """
    found: set[int] = set()
    for frame in frames:
        if is_in(frame, RAY_WORKER_FILE):
            continue
        with contextlib.suppress(Unreadable):
            found.update(frame.variables)
    found.discard(0)
    return found


def _modules(frames: Iterable[Frame]) -> set[int]:
    """The dicts of the modules of these frames."""
    found: set[int] = set()
    for frame in frames:
        with contextlib.suppress(Unreadable):
            found.add(frame.globals)
    return found
