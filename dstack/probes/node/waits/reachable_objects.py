"""The objects that calls wait on, and the threads and coroutines that reach them, and so may end these waits.

One search for all these objects at once: from the variables of all frames and the globals of the user's modules, level
by level through the references of objects. It is bounded, so what it finds are candidates, perhaps not all.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.call_sites import kind_of
from dstack.libraries.train import HELPERS
from dstack.observed.calls import Call, ProcessObject
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MODULE_DICT, PythonProcess
from dstack.probes.node.cpython.references import References
from dstack.probes.node.named_values import actor_instance
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.thread_stacks import (
    ASYNCIO,
    IN_CALLERS,
    AnyFrame,
    CodePosition,
    TextFrame,
    is_in,
    poll_of,
    site_in,
)
from dstack.probes.node.waits.locks import LOCK, SIMPLE_QUEUE

CONDITION = ("/threading.py", "wait")
ENDED_BY_C = ("/grpc/",)
"""Libraries whose C threads end the wait, so reachability from Python threads proves nothing."""
ASYNCIO_FILES = ("/asyncio/locks.py", "/asyncio/queues.py")


@dataclass(frozen=True)
class WaitsOn:
    """The addresses of the objects that a call waits on, the outermost last.

    Two waits of one ``kind`` wait for the same event of the same object: neither ends the other.
    """

    objects: tuple[int, ...] = ()
    kind: tuple[int, str] = (0, "")


NOTHING = WaitsOn()


def of_thread(
    call: Call, frames: Sequence[MemoryFrame], objects: Objects, is_user: Callable[[AnyFrame], bool]
) -> WaitsOn:
    """The objects that the call of a thread waits on; none where these do not show what ends the wait."""
    inside = list(itertools.takewhile(lambda frame: not is_user(frame), frames))
    if not isinstance(call.need, ProcessObject) or any(part in frame.file for frame in inside for part in ENDED_BY_C):
        return NOTHING
    identity = int(call.need.object_id or "0", 16)
    match kind_of(call):
        case "lock" if not objects.is_a(identity, LOCK):
            return NOTHING
        case "lock":
            return WaitsOn((identity,), (identity, "acquire"))
        case "future":
            return WaitsOn((identity,), (identity, "result")) if identity else NOTHING
    if objects.is_a(identity, SIMPLE_QUEUE) or poll_of(frames[0]):
        return WaitsOn((identity,), (identity, frames[0].function)) if identity else NOTHING
    if not is_in(frames[0], *CONDITION) or not frames[0].local("self"):
        return NOTHING
    owners = [frame.local("self") for frame in inside[: call.frame + 1] if _shares_self(frame)]
    found = dict.fromkeys((frames[0].local("self"), *owners, *_helpers(inside, objects)))
    return WaitsOn(tuple(one for one in found if one), (frames[0].local("self"), "wait"))


def of_coroutine(call: Call | None, frames: Sequence[MemoryFrame], objects: Objects) -> WaitsOn:
    """The objects that the call of a coroutine waits on: locks, conditions, events, semaphores and queues."""
    is_of_asyncio = bool(frames) and frames[0].file.endswith(ASYNCIO_FILES)
    if call is None or not isinstance(call.need, ProcessObject) or not is_of_asyncio:
        return NOTHING
    inside = itertools.takewhile(lambda frame: ASYNCIO in frame.file, frames)
    found = [frame.local("self") for frame in inside if frame.file.endswith(ASYNCIO_FILES)]
    owners = tuple(dict.fromkeys(one for one in found if one))
    return WaitsOn(owners, (owners[0], frames[0].function)) if owners else NOTHING


def _shares_self(frame: MemoryFrame) -> bool:
    """Whether the frame is a method whose object is awaited; at a meeting of processes no object is."""
    site = site_in(frame, IN_CALLERS)
    return site is not None and not site.is_meeting


def _helpers(inside: Sequence[MemoryFrame], objects: Objects) -> Iterator[int]:
    """The Thread objects that the frames wait for."""
    for frame in inside:
        for file, function, attribute in HELPERS:
            if is_in(frame, file, function):
                with contextlib.suppress(UnreadableMemory):
                    yield objects.attribute(frame.local("self"), attribute)


MAX_DEPTH = 3
"""References from a variable to the object: ``self``, its ``state``, a dict there, the object."""
MAX_REACHED = 256
"""If more threads and coroutines reach an object, none of them is reported."""

THREAD, COROUTINE, ACTOR = "thread", "coroutine", "actor"
Root = tuple[str, int]
"""One of these kinds, and the OS id of a thread or the address of a coroutine or of an actor's instance."""


@dataclass
class Reached:
    """What leads to each object that is waited on; ``waits`` are those of the threads and coroutines.

    ``holders`` are the objects that refer to an object, and ``roots`` what has an object in its variables or globals,
    by the object's address. Each wait is followed back separately: storing all objects that each root reaches
    costs more if thousands of coroutines share an object.
    """

    holders: Mapping[int, Sequence[int]] = field(default_factory=dict)
    roots: Mapping[int, Sequence[Root]] = field(default_factory=dict)
    waits: Mapping[Root, WaitsOn] = field(default_factory=dict)
    _known: dict[tuple[Root | None, WaitsOn], ProcessObject] = field(default_factory=dict)

    def with_reach(self, waiter: Root, call: Call, waits_on: WaitsOn) -> Call:
        """The call with what reaches the objects that it waits on, except the waiter and waiters for the same event."""
        need = call.need
        if not isinstance(need, ProcessObject) or not waits_on.objects:
            return call
        is_known = self.waits.get(waiter, NOTHING).kind == waits_on.kind
        key = None if is_known else waiter, waits_on
        if key not in self._known:
            self._known[key] = self._reach(waiter, waits_on)
        return replace(call, need=replace(self._known[key], object_id=need.object_id))

    def roots_of(self, address: int) -> set[Root]:
        """The threads, coroutines and the actor that reach an object; none if they are too many."""
        found: set[Root] = set()
        for roots in self._roots_of(WaitsOn((address,))):
            found.update(roots)
        return found if len(found) <= MAX_REACHED else set()

    def _reach(self, waiter: Root, waits_on: WaitsOn) -> ProcessObject:
        most = MAX_REACHED + 1 + self._waiters[waits_on.kind]
        found: set[Root] = set()
        for roots in self._roots_of(waits_on):
            if len(roots) > most or len(found) > most:
                return ProcessObject()
            found.update(root for root in roots if self.waits.get(root, NOTHING).kind != waits_on.kind)
        found.discard(waiter)
        if len(found) > MAX_REACHED:
            return ProcessObject()
        return ProcessObject(
            reached_by=tuple(sorted(key for kind, key in found if kind == THREAD)),
            reached_by_coroutines=tuple(hex(key) for key in sorted(key for kind, key in found if kind == COROUTINE)),
            reached_by_actor=any(kind == ACTOR for kind, _ in found),
        )

    @cached_property
    def _waiters(self) -> Counter[tuple[int, str]]:
        """The number of waiters for each kind of event."""
        return Counter(waits_on.kind for waits_on in self.waits.values())

    def _roots_of(self, waits_on: WaitsOn) -> Iterator[Sequence[Root]]:
        """The roots that have one of the objects, or one that leads to it, in their variables or globals."""
        level = set(waits_on.objects)
        seen: set[int] = set()
        for _ in range(MAX_DEPTH + 1):
            seen |= level
            for address in level:
                yield self.roots.get(address, ())
            level = {holder for address in level for holder in self.holders.get(address, ())} - seen


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
"""A module's file is among the first names that the import system gives it; CPython 3.10 to 3.15."""


@dataclass(frozen=True)
class Roots:
    """Where a thread or coroutine begins to reach objects: its variables, and the dicts of the user's modules."""

    variables: set[int]
    globals: Collection[int] = ()


def what_reaches(
    process: PythonProcess,
    waits: Mapping[Root, WaitsOn],
    coroutines: Mapping[int, Sequence[MemoryFrame]],
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
        holders = ObjectSearch(process, wanted).holders(roots.values())
    leading = wanted.union(*holders.values())
    by_object: dict[int, list[Root]] = {}
    for root, begins in roots.items():
        for address in leading.intersection((*begins.variables, *begins.globals)):
            by_object.setdefault(address, []).append(root)
    return Reached(holders, by_object, waits)


def _all_roots(
    process: PythonProcess, coroutines: Mapping[int, Sequence[MemoryFrame]], is_user: Callable[[AnyFrame], bool]
) -> dict[Root, Roots]:
    modules = UserModules(process, is_user)

    def roots_of(frames: Sequence[MemoryFrame]) -> Roots:
        own = _modules(frame for frame in frames if is_user(frame))
        return Roots(variables_of(frames), {reached for module in own for reached in modules.reached_from(module)})

    roots: dict[Root, Roots] = {}
    for thread in process.threads:
        if thread.os_thread_id:
            roots[THREAD, thread.os_thread_id] = roots_of(thread.frames)
            roots[THREAD, thread.os_thread_id].variables.update(_handles(thread.frames, process))
    roots.update({(COROUTINE, address): roots_of(frames) for address, frames in coroutines.items()})
    return {**roots, **_actor(process)}


def _handles(frames: Sequence[MemoryFrame], process: PythonProcess) -> Iterator[int]:
    """The callbacks that an event loop of asyncio's own will make, if one runs in these frames."""
    for frame in frames:
        if is_in(frame, "/asyncio/base_events.py", "run_forever"):
            with contextlib.suppress(UnreadableMemory):
                attributes = process.objects.attributes(frame.local("self"))
                yield from process.objects.items(attributes.get("_scheduled", 0), MAX_HANDLES)
                yield from itertools.islice(process.objects.deque_items(attributes.get("_ready", 0)), MAX_HANDLES)


def _actor(process: PythonProcess) -> dict[Root, Roots]:
    with contextlib.suppress(UnreadableMemory):
        instance = actor_instance(process.modules, process.objects)
        return {(ACTOR, instance): Roots({instance})} if instance else {}
    return {}


class ObjectSearch:
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


def variables_of(frames: Iterable[MemoryFrame]) -> set[int]:
    """The objects that the readable variables of these frames refer to.

    Without Ray's worker object, which every main thread has: it leads to the actor, which is a root of its own.
    """
    found: set[int] = set()
    for frame in frames:
        if is_in(frame, RAY_WORKER_FILE):
            continue
        with contextlib.suppress(UnreadableMemory):
            found.update(frame.variables)
    found.discard(0)
    return found


def _modules(frames: Iterable[MemoryFrame]) -> set[int]:
    """The dicts of the modules of these frames."""
    found: set[int] = set()
    for frame in frames:
        with contextlib.suppress(UnreadableMemory):
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
        with contextlib.suppress(UnreadableMemory):
            values = self._objects.first_entries(module, MAX_GLOBALS)
            self._memory.prefetch(values)
            modules = [value for value in values if self._objects.is_a(value, "module")]
            yield from (self._memory.pointer(one + MODULE_DICT) for one in modules)

    def _is_of_user(self, module: int) -> bool:
        if module not in self._is_users:
            self._is_users[module] = self._is_user(TextFrame(CodePosition(self._file(module), "", "", 0)))
        return self._is_users[module]

    def _file(self, module: int) -> str:
        """The path of a module's file, empty where it has none."""
        with contextlib.suppress(UnreadableMemory):
            file = self._objects.first_named(module, FIRST_NAMES).get("__file__", 0)
            return self._objects.text(file) if self._objects.is_a(file, "str") else ""
        return ""
