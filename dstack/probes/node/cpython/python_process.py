"""The Python of a process: its layout, and in one reading of its memory its objects, threads, frames and modules."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.code_objects import Code, KnownPositions
from dstack.probes.node.cpython.debug_offsets import FIRST_VERSION, read_debug_offsets, with_debug_offsets
from dstack.probes.node.cpython.hashes import SECRET_BYTES, Hashes, is_own
from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION, CPythonLayout, Version
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import FrameChain, Frames, MemoryFrame, Step
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.self_check import require_own_layout
from dstack.probes.node.procfs import proc
from dstack.probes.node.thread_stacks import PythonThread
from dstack.probes.node.wire import ForeignPython, UnreadablePython

MODULE_DICT = 16

_USUAL = """
threading asyncio.tasks ray._private.worker uvloop _active global_worker _scheduled_tasks _all_tasks _current_tasks
os ray.util.collective.collective _group_mgr torch.distributed.distributed_c10d _world _default_pg_init_method
_pg_group_ranks _pg_names _pg_backend_config dstack.labels LABELS ray.train.v2._internal.execution.context
dstack.spans OPEN FINISHED
"""
USUAL = frozenset(_USUAL.split())
"""Names of modules and their attributes that are usually requested: one search finds all of them."""


KNOWN_FUNCTION = "_frozen_importlib", "_find_and_load", "<frozen importlib._bootstrap>"
"""A function that every process of CPython 3.10 to 3.15 has: its module, its name, and the file of its code."""


OF_DEBUG_BUILD = "gettotalrefcount"
"""A function of ``sys`` in builds that count references for debugging, which have other layouts."""


def runtime_address() -> int:
    """The address of ``_PyRuntime`` in the reader's own process."""
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


def own_secret() -> int | None:
    """The address of the secret of hashes in the reader's own process; None where its hashes are other ones."""
    try:
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_Py_HashSecret"))
    except ValueError:
        return None
    return address if is_own(ctypes.string_at(address, SECRET_BYTES)) else None


def own_layout() -> CPythonLayout:
    """The layout of the reader's own interpreter. Raises :class:`UnreadableMemory` where it is not in the table."""
    name = f"{OWN_VERSION[0]}.{OWN_VERSION[1]}"
    if sys.implementation.name != "cpython" or OWN_VERSION not in LAYOUTS:
        raise UnreadableMemory(f"memory of {sys.implementation.name} {name} is not supported")
    if kind := _other_kind():
        raise UnreadableMemory(f"it runs a {kind} build of Python {name}, which dstack cannot read")
    try:
        with open_memory(os.getpid()) as memory:
            layout = layout_of(memory, runtime_address(), OWN_VERSION)
            require_own_layout(memory, layout, runtime_address())
    except OSError as error:
        raise UnreadableMemory(f"its memory cannot be read: {error}") from error
    return layout


def _other_kind() -> str | None:
    """The kind of this interpreter if its layout is not that of a release with the GIL."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded"
    return "debug" if hasattr(sys, OF_DEBUG_BUILD) else None


def layout_of(memory: ProcessMemory, runtime: int, version: Version) -> CPythonLayout:
    """The table's layout of a version, with the offsets that a process with this ``_PyRuntime`` states itself."""
    layout = LAYOUTS[version]
    return (
        layout if version < FIRST_VERSION else with_debug_offsets(layout, read_debug_offsets(memory, runtime, version))
    )


class OwnPython:
    """The reader's own interpreter: whether its layout is known, and the place of ``_PyRuntime`` in its file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_known_layout = False
        self._place: tuple[proc.File, int] | None = None
        self._secret: tuple[int | None] | None = None

    def require_known_layout(self) -> None:
        """Raise :class:`UnreadableMemory` where its layout is not in the table; checked until it succeeds once."""
        with self._lock:
            if not self._has_known_layout:
                own_layout()
                self._has_known_layout = True

    def place(self) -> tuple[proc.File, int] | None:
        """The file that has ``_PyRuntime``, and the distance from its beginning in memory; found on first use."""
        with self._lock:
            if self._place is None:
                self._place = proc.place_in_file(runtime_address())
            return self._place

    def is_in(self, files: Collection[proc.File]) -> bool:
        """Whether a process that has mapped these files runs the same build."""
        place = self.place()
        return place is not None and place[0] in files

    def distance_to_secret(self) -> int | None:
        """The distance from ``_PyRuntime`` to the secret of hashes; None where it is not known. Found on first use."""
        with self._lock:
            if self._secret is None:
                self._secret = (own_secret(),)
            (address,) = self._secret
        return None if address is None else address - runtime_address()


class Interpreter:
    """The Python of a process, as far as it must be known to read the process's memory.

    ``foreign`` is what :mod:`dstack.probes.node_access.targets` found, or what the process states itself; None where
    it is the reader's own build;
    ``files`` are the files that the process has mapped. Methods raise :class:`UnreadableMemory`, all of them with the
    same reason where dstack cannot read this Python.
    """

    def __init__(
        self, foreign: ForeignPython | UnreadablePython | None, own: OwnPython, files: dict[proc.File, proc.Mapping]
    ) -> None:
        self._foreign = foreign
        self._own = own
        self._files = files
        self._layout: CPythonLayout | None = None

    @property
    def unreadable(self) -> str | None:
        """Why dstack cannot read this Python, if it cannot."""
        return self._foreign["unreadable"] if self._foreign and "unreadable" in self._foreign else None

    def layout(self, memory: ProcessMemory) -> CPythonLayout:
        """The layout of this Python, in a process with this memory; read and checked once."""
        if self._layout is None:
            foreign = self._identified()
            if foreign is None:
                self._own.require_known_layout()
            version = OWN_VERSION if foreign is None else foreign["version"]
            layout = layout_of(memory, self.runtime(), (version[0], version[1]))
            if foreign:
                _require_known_function(memory, layout, foreign["runtime"])
            self._layout = layout
        return self._layout

    def runtime(self) -> int:
        """The address of ``_PyRuntime`` in the process."""
        if foreign := self._identified():
            return foreign["runtime"]
        place = self._own.place()
        file = self._files.get(place[0]) if place else None
        if place is None or file is None:
            raise UnreadableMemory("it runs another build of Python than dstack")
        return file.start + place[1]

    def hash_secret(self) -> int | None:
        """The address of the secret of its hashes, None where that is not known."""
        distance = None if self._identified() else self._own.distance_to_secret()
        return None if distance is None else self.runtime() + distance

    def _identified(self) -> ForeignPython | None:
        if self._foreign and "unreadable" in self._foreign:
            raise UnreadableMemory(self._foreign["unreadable"])
        return self._foreign


def _require_known_function(memory: ProcessMemory, layout: CPythonLayout, runtime: int) -> None:
    """Raise :class:`UnreadableMemory` unless a function that every process has is found by this layout."""
    objects = Objects(memory, layout)
    frames = Frames(objects, runtime)
    modules = Modules(objects, frames)
    major, minor = layout.version
    module, name, file = KNOWN_FUNCTION
    function = modules.lookup(module, name)
    code = frames.codes.get(memory.pointer(function + layout.function_code)) if function else None
    if code is None or (code.function, code.file) != (name, file):
        raise UnreadableMemory(f"its memory is not that of a Python {major}.{minor} that dstack knows")
    if modules.lookup("sys", OF_DEBUG_BUILD):
        raise UnreadableMemory(f"it runs a debug build of Python {major}.{minor}, which dstack cannot read")


class Modules:
    """The modules of one process. Every method raises :class:`UnreadableMemory`.

    Where the hashes of its names are not known, ``places`` caches the position of a name in a dict, so that large dicts
    are searched once for a process. For a missing name it has ``-1 - entries`` of the dict. Both are validated.
    """

    def __init__(self, objects: Objects, frames: Frames, places: dict[tuple[int, str], int] | None = None) -> None:
        self._objects = objects
        self._frames = frames
        self._dicts: dict[str, int] = {}
        self._places = {} if places is None else places

    @cached_property
    def _modules(self) -> int:
        return self._objects.memory.pointer(self._frames.interpreter + self._objects.layout.interpreter_modules)

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
        if self._objects.hashes:
            return self._objects.value_of(table, name)
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


PTHREAD_TID = {"x86_64": 720, "aarch64": 208}
"""Where glibc's struct pthread keeps the OS thread id; seen with glibc 2.31 to 2.41 on x86-64, 2.36 on aarch64."""

MemoryThread = PythonThread[MemoryFrame]
K = TypeVar("K")
V = TypeVar("V")


@dataclass
class KnownPython:
    """What earlier readings have learned of a process; all of it is validated before use.

    ``positions`` are shared with other processes: workers run much of the same code.
    ``ranks`` are those of process groups, by what identifies the dict that has them. ``groups`` are the concurrency
    groups of an actor's methods, by what identifies the actor and its class.
    ``hashes`` are those of names, by the secret that they depend on.
    ``pages`` are the addresses that the last one has read: the next one reads them first, in few system calls.
    ``os_thread_ids`` are the threads that ran Python. ``uncertain`` is what only one reading has learned, while the
    process ran: its pages were read one after another, so what was made in between may seem to have the content of
    whatever was at its address before.
    """

    positions: KnownPositions = field(default_factory=dict, compare=False)
    codes: dict[int, Code] = field(default_factory=dict)
    places: dict[tuple[int, str], int] = field(default_factory=dict)
    ranks: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    groups: dict[tuple[int, ...], dict[str, str]] = field(default_factory=dict)
    pages: Collection[int] = field(default=(), compare=False)
    os_thread_ids: Collection[int] = field(default=(), compare=False)
    uncertain: KnownPython | None = field(default=None, compare=False)
    hashes: dict[bytes, Hashes] = field(default_factory=dict, compare=False)

    def copy(self) -> KnownPython:
        """A copy, into which one reading writes what it learns."""
        return replace(
            self,
            codes=dict(self.codes),
            places=dict(self.places),
            ranks=dict(self.ranks),
            groups=dict(self.groups),
            uncertain=None,
        )

    def keep(self, learned: KnownPython, *, is_certain: bool) -> None:
        """Keep what a reading has learned; unless it is certain, only what an uncertain one before has learned too."""
        uncertain = self.uncertain = self.uncertain or KnownPython()
        _keep(learned.codes, self.codes, uncertain.codes, is_certain)
        _keep(learned.places, self.places, uncertain.places, is_certain)
        _keep(learned.ranks, self.ranks, uncertain.ranks, is_certain)
        _keep(learned.groups, self.groups, uncertain.groups, is_certain)


def _keep(learned: Mapping[K, V], kept: dict[K, V], uncertain: dict[K, V], is_certain: bool) -> None:
    for key, value in learned.items():
        if kept.get(key) is value:
            continue
        if is_certain or uncertain.get(key) == value:
            kept[key] = value
            uncertain.pop(key, None)
        else:
            uncertain[key] = value


class PythonProcess:
    """The Python of a process in one reading of its memory. Every method raises :class:`UnreadableMemory`.

    ``os_thread_ids`` are the threads that the kernel lists. ``states`` are the addresses of thread states by
    thread id, if an earlier reading has found them; they are validated.
    """

    def __init__(
        self,
        memory: ProcessMemory,
        interpreter: Interpreter,
        known: KnownPython | None = None,
        os_thread_ids: Collection[int] = (),
        states: Mapping[int, int] | None = None,
    ) -> None:
        self.memory = memory
        self._interpreter = interpreter
        self.known = known or KnownPython()
        self._os_thread_ids = os_thread_ids
        self._states = states
        memory.prefetch(self.known.pages)

    @cached_property
    def objects(self) -> Objects:
        """Its objects."""
        return Objects(self.memory, self.layout, self._hashes())

    def _hashes(self) -> Hashes | None:
        address = self._interpreter.hash_secret()
        if address is None:
            return None
        secret = self.memory.read(address, SECRET_BYTES)
        return self.known.hashes.setdefault(secret, Hashes(secret))

    @cached_property
    def layout(self) -> CPythonLayout:
        """The layout of its CPython."""
        return self._interpreter.layout(self.memory)

    @cached_property
    def frames(self) -> Frames:
        """Its frames."""
        return Frames(self.objects, self._interpreter.runtime(), self.known.codes, self.known.positions)

    @cached_property
    def modules(self) -> Modules:
        """Its modules."""
        return Modules(self.objects, self.frames, self.known.places)

    @cached_property
    def _chains(self) -> dict[int, FrameChain]:
        return self.frames.chains(self.frames.threads)

    @cached_property
    def threads(self) -> list[MemoryThread]:
        """Its Python threads, with their frames."""
        names = self.names()
        return [
            PythonThread(
                thread_id, os_thread_id(self.memory, thread_id, self._os_thread_ids), names.get(thread_id, ""), frames
            )
            for thread_id, frames in self.frames.stacks(self._chains).items()
        ]

    @property
    def broken(self) -> set[int]:
        """The OS ids of the threads whose frames were not all readable."""
        return {one.os_thread_id for one in self.threads if not self.frames.is_whole(self._chains[one.thread_id])}

    def steps(self, thread: MemoryThread) -> Sequence[Step]:
        """A thread's frames as addresses, leaf first."""
        return self._chains[thread.thread_id].steps

    def thread_again(self, thread: MemoryThread) -> tuple[MemoryThread, Sequence[Step]]:
        """The current frames of a thread of an earlier reading, and its new steps."""
        state = (self._states or {}).get(thread.thread_id)
        is_known = state and self.memory.pointer(state + self.layout.thread_id) == thread.thread_id
        states = {thread.thread_id: state} if state and is_known else self.frames.threads
        if thread.thread_id not in states:
            raise UnreadableMemory("the interpreter does not know the thread")
        chains = self.frames.chains({thread.thread_id: states[thread.thread_id]})
        frames = self.frames.stacks(chains)[thread.thread_id]
        if not self.frames.is_whole(chains[thread.thread_id]):
            raise UnreadableMemory("not all of its frames could be read")
        return replace(thread, frames=frames), chains[thread.thread_id].steps

    def names(self) -> Mapping[int, str]:
        """The names of ``threading``'s threads by thread id; none where they cannot be read."""
        names: dict[int, str] = {}
        with contextlib.suppress(UnreadableMemory):
            active = self.modules.lookup("threading", "_active")
            for key, thread in self.objects.entries(active) if active else ():
                with contextlib.suppress(UnreadableMemory):
                    name = self.objects.attribute(thread, "_name")
                    names[int(self.objects.number(key) or 0)] = self.objects.text(name)
        return names


def size_of_pthread(files: Collection[proc.File]) -> int:
    """The size of glibc's struct pthread, as this process's C library states it to debuggers from glibc 2.34 on.

    Raises ``ValueError`` where it does not, or where ``files``, those that a process has mapped, lack this library.
    """
    size = ctypes.c_uint32.in_dll(ctypes.pythonapi, "_thread_db_sizeof_pthread")
    place = proc.place_in_file(ctypes.addressof(size))
    if place is None or place[0] not in files:
        raise ValueError("another C library")
    return size.value


def os_thread_id(memory: ProcessMemory, thread_id: int, known: Collection[int]) -> int:
    """The OS id of the thread with this pthread id; 0 if unreadable, or not a thread of the process.

    ``known`` are threads that the kernel has listed. Any other may have begun since, so the kernel is asked again.
    """
    try:
        found = memory.int32(thread_id + PTHREAD_TID[proc.machine()])
    except UnreadableMemory:
        return 0
    return found if found in known or proc.has_thread(memory.pid, found) else 0
