"""Search for the threads and coroutines that reach the objects which others in the process wait on.

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
from dstack.probes.node.cpython.process import MODULE_DICT, PythonProcess
from dstack.probes.node.cpython.references import References
from dstack.probes.node.ray.concurrency_groups import actor_instance
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.threads import Frame as AnyFrame
from dstack.probes.node.threads import Position, ShownFrame, is_in
from dstack.probes.node.waits.reached import ACTOR, COROUTINE, MAX_DEPTH, THREAD, Reached, Root
from dstack.probes.node.waits.shared_objects import WaitsOn

MAX_EXAMINED = 20_000
"""Objects whose type is read, in all."""
MAX_COROUTINES = 5_000
MAX_HANDLES = 1_000
MAX_FOLLOWED = 256
"""The number of references of one object that are followed; later ones are only compared."""
MAX_MODULES = 30
"""The maximum number of the user's modules that one module reaches."""
MAX_GLOBALS = 512
FIRST_NAMES = 10
"""A module's file is among the first names that the import system gives it; CPython 3.10 to 3.14."""


@dataclass(frozen=True)
class Roots:
    """Where a thread or coroutine begins to reach objects: its variables, and the dicts of the user's modules."""

    variables: set[int]
    globals: Collection[int] = ()


def what_reaches(
    process: PythonProcess,
    waits: Mapping[Root, WaitsOn],
    coroutines: Mapping[int, Sequence[Frame]],
    is_user: Callable[[AnyFrame], bool],
    others: Collection[int] = (),
    timers: Mapping[int, Collection[int]] | None = None,
) -> Reached:
    """What reaches the objects of these waits of threads and coroutines, and these ``others``.

    ``coroutines`` are the frames of the suspended ones, by address, and ``timers`` what the timers of event loops will
    call, by the OS ids of their threads. Nothing is raised.
    """
    if len(coroutines) > MAX_COROUTINES:
        return Reached()
    wanted = {*others, *(one for waits_on in waits.values() for one in waits_on.objects)}
    with process.memory.temporary():
        roots = _all_roots(process, coroutines, is_user)
        for thread, called in (timers or {}).items():
            roots.setdefault((THREAD, thread), Roots(set())).variables.update(called)
        holders = Search(process, wanted).holders(roots.values())
    leading = wanted.union(*holders.values())
    by_object: dict[int, list[Root]] = {}
    for root, begins in roots.items():
        for address in leading.intersection((*begins.variables, *begins.globals)):
            by_object.setdefault(address, []).append(root)
    return Reached(holders, by_object, waits)


def _all_roots(
    process: PythonProcess, coroutines: Mapping[int, Sequence[Frame]], is_user: Callable[[AnyFrame], bool]
) -> dict[Root, Roots]:
    modules = UserModules(process, is_user)

    def roots_of(frames: Sequence[Frame]) -> Roots:
        own = _modules(frame for frame in frames if is_user(frame))
        return Roots(variables_of(frames), {reached for module in own for reached in modules.reached_from(module)})

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

    def holders(self, roots: Collection[Roots]) -> dict[int, list[int]]:
        """The objects that refer to an object wanted, or to one that leads there, by the object they refer to."""
        self._expand(roots)
        holders: dict[int, list[int]] = {}
        new = set(self._wanted)
        for _ in range(MAX_DEPTH):
            following: set[int] = set()
            for address, references in self._found.items():
                if not new.isdisjoint(references):
                    for one in new.intersection(references):
                        holders.setdefault(one, []).append(address)
                    following.add(address)
            new = following - holders.keys() - set(self._wanted)
        return holders

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


def variables_of(frames: Iterable[Frame]) -> set[int]:
    """The objects that the readable variables of these frames refer to.

    Without Ray's worker object, which every main thread has: it leads to the actor, which is a root of its own.
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


class UserModules:
    """The user's modules of one process, by the addresses of their dicts. Nothing is raised."""

    def __init__(self, process: PythonProcess, is_user: Callable[[AnyFrame], bool]) -> None:
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
