"""The offsets of this interpreter's minor version, calibrated on objects of the reader's own process.

CPython's structs differ between minor versions. So a specimen thread waits in a known frame for a known lock, and its
memory is searched for known values. The reader's own memory is also read through the kernel only: following a word that
is no pointer must not crash the reader.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from dstack.probes.node.cpython.calibration import Search
from dstack.probes.node.cpython.coroutine_layout import CoroutineLayout, calibrate_coroutines
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable, open_memory
from dstack.probes.node.cpython.objects import OWN_VERSION, Objects

RUNTIME_BYTES = 1 << 16
INTERPRETER_BYTES = 1 << 17
THREAD_BYTES = 512
FRAME_BYTES, FRAME_OBJECT_BYTES, BETWEEN_BYTES = 80, 40, 32
TYPE_BYTES, HEAP_TYPE_BYTES = 400, 1024
"""A type that a program makes has further fields after those of every type."""
NO_ARGUMENT = ("PyThreadState_Get", "PyInterpreterState_Head")
THROUGH_STRUCT = ((3, 11), (3, 12))
"""Versions whose thread states lead to a frame through another struct, ``_PyCFrame``."""
START_S = 5.0
ATTEMPTS = 10
LOCK_SEMAPHORE = 16
"""The offset in a lock of the pointer to its waiters' semaphore, or of the byte that they are parked at."""
BLOCK_STACK_BYTES, BLOCK_BYTES = 240, 12
"""CPython 3.10: a frame's 20 blocks are right before its locals, and their number is 8 bytes before them."""


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes, in this minor ``version`` of CPython.

    ``thread_frame`` leads from a thread state to its leaf frame, one offset for each pointer. ``code_names`` are the
    tuples of names of locals, cells and free variables; ``code_exceptions`` and ``cached_keys`` are None on 3.10, which
    has none. ``code_start`` is the offset of the instructions in a code object.
    """

    version: tuple[int, int]
    runtime_interpreter: int
    interpreter_threads: int
    thread_next: int
    thread_id: int
    thread_frame: tuple[int, ...]
    frame_previous: int
    frame_code: int
    frame_instruction: int
    frame_locals: int
    code_file: int
    code_function: int
    code_names: tuple[int, ...]
    code_stack_size: int
    code_start: int
    code_exceptions: int | None
    cached_keys: int | None
    rlock_owner: int
    queue_items: int
    coroutines: CoroutineLayout


def calibrate() -> Layout:
    """The layout of this interpreter. Raises :class:`Unreadable` where it is not as expected.

    It is retried: a thread that starts or ends meanwhile changes the list of threads.
    """
    if sys.implementation.name != "cpython" or not (3, 10) <= OWN_VERSION <= (3, 14):
        raise Unreadable(f"memory of {sys.implementation.name} {OWN_VERSION[0]}.{OWN_VERSION[1]} is not supported")
    if kind := _other_kind():
        raise Unreadable(
            f"it runs a {kind} build of Python {OWN_VERSION[0]}.{OWN_VERSION[1]}, which dstack cannot read"
        )
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            with open_memory(os.getpid()) as memory, Specimen() as specimen:
                return Calibration(memory, specimen).layout()
        except (LookupError, ValueError, StopIteration, OSError) as error:
            reason = error
    raise Unreadable(f"the memory layout of dstack's Python is not as expected: {reason}") from reason


def _other_kind() -> str | None:
    """The kind of this interpreter if its layout is not that of a release with the GIL."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded"
    return "debug" if hasattr(sys, "gettotalrefcount") else None


def runtime_address() -> int:
    """The address of ``_PyRuntime`` in the reader's own process."""
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


class Specimen:
    """A thread that waits for a lock in a frame with known content."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.markers = (object(), object())
        self.state = 0
        self._thread = threading.Thread(target=self._run, name="dstack-specimen", daemon=True)

    def __enter__(self) -> Specimen:
        self.gate.acquire()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.release()
        self._thread.join()

    def _run(self) -> None:
        self.state = _api("PyThreadState_Get")()
        first, second = self.markers
        self._wait(first, second)  # a plain call: on 3.12 and 3.13 any other kind has a frame of C in between

    def _wait(self, first: object, second: object) -> None:
        self.gate.acquire()

    @property
    def ident(self) -> int:
        """The thread's id as Python has it, which is its pthread."""
        assert self._thread.ident is not None
        return self._thread.ident

    def frame(self) -> FrameType:
        """The frame of ``_wait``, once it waits there."""
        end = time.monotonic() + START_S
        before = -1
        while time.monotonic() < end:
            frame = sys._current_frames().get(self.ident)
            if frame is not None and frame.f_code is Specimen._wait.__code__:
                if frame.f_lasti == before:
                    return frame
                before = frame.f_lasti
            time.sleep(0.001)
        raise LookupError("no thread could be started")


class Calibration(Search):
    """The search for the layout. Raises ``LookupError`` or ``ValueError`` where something is not found."""

    def __init__(self, memory: ProcessMemory, specimen: Specimen) -> None:
        super().__init__(memory)
        self._objects = Objects(memory)
        self._version = self._objects.version
        self._specimen = specimen
        self._frame = specimen.frame()
        self._code = self._frame.f_code

    def layout(self) -> Layout:
        """The whole layout."""
        interpreter = _api("PyInterpreterState_Head")()
        first = _api("PyInterpreterState_ThreadHead")(interpreter)
        state = self._specimen.state
        leaf = self._address_of(self._frame)
        frame_code = 8 * self._references(leaf, FRAME_BYTES).index(id(self._code))
        start = id(self._code.co_code) if self._version == (3, 10) else id(self._code) + type(self._code).__basicsize__
        return Layout(
            version=self._version,
            runtime_interpreter=self._find(runtime_address(), RUNTIME_BYTES, interpreter),
            interpreter_threads=self._find(interpreter, INTERPRETER_BYTES, first),
            thread_next=self._thread_next(state),
            thread_id=self._find(state, THREAD_BYTES, self._specimen.ident),
            thread_frame=self._way(state, leaf),
            frame_previous=self._find(leaf, FRAME_BYTES, self._address_of(self._frame.f_back)),
            frame_code=frame_code,
            frame_instruction=self._instruction(leaf, start),
            frame_locals=self._locals(leaf),
            code_file=self._in_code("co_filename"),
            code_function=self._in_code("co_name"),
            code_names=self._names(),
            code_stack_size=self._stack_size(),
            code_start=self._in_code("co_code") if self._version == (3, 10) else type(self._code).__basicsize__,
            code_exceptions=self._in_code("co_exceptiontable") if self._version >= (3, 11) else None,
            cached_keys=self._cached_keys() if self._version >= (3, 11) else None,
            rlock_owner=self._rlock_owner(),
            queue_items=self._queue_items(),
            coroutines=calibrate_coroutines(self._memory, interpreter, frame_code),
        )

    def _thread_next(self, state: int) -> int:
        """The offset of the next thread's state; an ended thread's address may be that of the previous one by now."""
        following = _api("PyThreadState_Next")(state)
        offset = self._find(state, THREAD_BYTES, following)
        if _api("PyThreadState_Next")(state) != following:
            raise LookupError("a thread ended during the search")
        return offset

    def _address_of(self, frame: FrameType | None) -> int:
        """The address of a frame: of the frame object on 3.10, later of what the frame object points to."""
        if frame is None:
            raise LookupError("its frame has no caller")
        if self._version == (3, 10):
            return id(frame)
        for pointer in self._memory.mapped_words(id(frame), FRAME_OBJECT_BYTES)[2:]:
            if pointer and id(frame.f_code) in self._references(pointer, FRAME_BYTES):
                return pointer
        raise LookupError("a frame object does not lead to its frame")

    def _way(self, state: int, leaf: int) -> tuple[int, ...]:
        """The offsets from a thread state to its leaf frame: one, or two through a struct (3.11 and 3.12).

        The search may go beyond the end of the thread state, where anything can be, also the address of this frame.
        The right place comes before that.
        """
        words = self._memory.mapped_words(state, THREAD_BYTES)
        if self._version not in THROUGH_STRUCT:
            return (8 * words.index(leaf),)
        for index, pointer in enumerate(words):
            between = self._memory.mapped_words(pointer, BETWEEN_BYTES)
            if leaf in between:
                return 8 * index, 8 * between.index(leaf)
        raise LookupError("a thread does not lead to its frame")

    def _instruction(self, leaf: int, start: int) -> int:
        """The offset of the current instruction: on 3.10 a number, later an address."""
        if self._version >= (3, 11):
            return self._find(leaf, FRAME_BYTES, start + self._frame.f_lasti)
        numbers = struct.unpack("<40i", self._memory.read(leaf, 160))
        return 4 * numbers.index(self._frame.f_lasti // 2, 4)

    def _locals(self, leaf: int) -> int:
        words = self._references(leaf, FRAME_BYTES + 8 * 64)
        wanted = (id(self._specimen), *map(id, self._specimen.markers))
        return 8 * next(i for i in range(len(words)) if words[i : i + 3] == wanted)

    def _in_code(self, name: str) -> int:
        return self._in(self._code, getattr(self._code, name))

    def _names(self) -> tuple[int, ...]:
        """The tuples of names whose lengths together are the number of a frame's locals."""
        code = _with_all_kinds_of_names("argument").__code__
        words = self._memory.mapped_words(id(code), type(code).__basicsize__)
        if self._version == (3, 10):
            tuples = (code.co_varnames, code.co_cellvars, code.co_freevars)
            return tuple(8 * words.index(id(names)) for names in tuples)
        wanted = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        for index, pointer in enumerate(words):
            if self._objects.is_a(pointer, "tuple") and pointer != id(code.co_consts):
                items = self._objects.items(pointer)
                if (
                    all(self._objects.is_a(item, "str") for item in items)
                    and set(map(self._objects.text, items)) == wanted
                ):
                    return (8 * index,)
        raise LookupError("the names of locals")

    def _stack_size(self) -> int:
        return self._number_in({value: self._code.replace(co_stacksize=value) for value in (12345, 23456)})

    def _cached_keys(self) -> int:
        """The offset in a type by which the attributes of an instance are found, with their names."""
        kept = Attributed()
        if self._finds_attributes(kept, keys_at=0):
            raise LookupError("attributes that are not in a dict of their own")
        for offset in range(TYPE_BYTES, HEAP_TYPE_BYTES, 8):
            if self._finds_attributes(kept, keys_at=offset):
                return offset
        raise LookupError("the names of attributes")

    def _finds_attributes(self, kept: Attributed, *, keys_at: int) -> bool:
        with contextlib.suppress(Unreadable):
            return Objects(self._memory, lambda: keys_at).attributes(id(kept)) == {"first_of_its_names": id(True)}
        return False

    def _rlock_owner(self) -> int:
        lock = threading.RLock()
        with lock:
            return self._find(id(lock), type(lock).__basicsize__, threading.get_ident())

    def _queue_items(self) -> int:
        """A SimpleQueue's list, or from 3.13 on its array, which the capacity follows."""
        kept: queue.SimpleQueue[object] = queue.SimpleQueue()
        items = [object() for _ in range(3)]
        for item in items:
            kept.put(item)
        for index, pointer in enumerate(self._memory.mapped_words(id(kept), type(kept).__basicsize__)[2:], 2):
            found = (
                self._objects.items(pointer)
                if self._objects.is_a(pointer, "list")
                else self._memory.mapped_words(pointer, 24)
            )
            if found == tuple(map(id, items)):
                return 8 * index
        raise LookupError("the items of a SimpleQueue")


class Attributed:
    """An object whose attribute has a name that no other object uses."""

    def __init__(self) -> None:
        self.first_of_its_names = True


def _with_all_kinds_of_names(argument: object) -> Callable[[], object]:
    cell = argument

    def inner(local: object = None) -> object:
        kept = cell
        return lambda: (kept, local)

    return inner


def _api(name: str) -> Callable[..., int]:
    """A C function of CPython that takes a pointer or nothing and returns a pointer; called with the GIL."""
    function = ctypes.PYFUNCTYPE(ctypes.c_void_p, *([ctypes.c_void_p] * (name not in NO_ARGUMENT)))(
        (name, ctypes.pythonapi)
    )

    def call(*arguments: int) -> int:
        return int(function(*arguments) or 0)

    return call
