"""Waits of threads by recorded frames of Ray 2.60 and CPython 3.11 (others are named).

Objects of the frames are this process's own, so that their memory is read like a worker's. The kernel's figures are
simulated, except those of threads that sleep on real locks. Nothing here needs Ray.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import os
import queue
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.thread import _WorkItem
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from dstack.call_sites import EVENT_LOOP, EXIT, SITES, UNTIL_COMPLETE, kind_of, name_of
from dstack.libraries.compiled_graphs import READ as CHANNEL_READ
from dstack.observed.call_site import Place, Site
from dstack.observed.calls import (
    Awaitables,
    Call,
    Children,
    Executions,
    Futures,
    KernelObjects,
    ProcessObject,
    Unreadable,
)
from dstack.observed.calls import Refs as NeededRefs
from dstack.probes.node import thread_calls
from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.python_process import Interpreter, MemoryThread, OwnPython, PythonProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.proc import SystemCall
from dstack.probes.node.system_calls import Surroundings
from dstack.probes.node.thread_calls import BlockedCalls
from dstack.probes.node.thread_stacks import CodePosition, PythonThread
from tests.processes import wait_until

LIB = "/usr/lib/python3.11"
RAY = "/site-packages/ray"
APP = "/srv/app/main.py"
MAIN, OTHER, THIRD = 500, 501, 502
"""OS thread ids."""
UNKNOWN = ""
"""The number of no system call."""
BLOCKED = SystemCall("futex", (0x1000, 0, 0, 0, 0, 0))
CONDITION = (
    f"Condition.wait {LIB}/threading.py:327 self=condition timeout=None waiter=lock saved_state=None gotit=False"
)
USER = f"load {APP}:7"


# Parts of frames and threads


@dataclass(frozen=True)
class RecordedFrame:
    """A recorded frame whose locals are objects of this process, without a stack and outside of blocks."""

    position: CodePosition
    values: dict[str, object]
    stack: Sequence[int] = ()
    blocks: int = 0
    code: None = None

    @property
    def file(self) -> str:
        return self.position.file

    @property
    def function(self) -> str:
        return self.position.function

    @property
    def line(self) -> int:
        return self.position.line

    @property
    def names(self) -> Sequence[str]:
        return list(self.values)

    @property
    def locals(self) -> Sequence[int]:
        return [id(value) for value in self.values.values()]

    def local(self, name: str) -> int:
        return id(self.values[name]) if name in self.values else 0

    def has(self, name: str) -> bool:
        return name in self.values


def recorded(*lines: str, **values: object) -> list[RecordedFrame]:
    """Frames, leaf first, from lines of ``FUNCTION FILE:LINE LOCAL=VALUE ...``.

    A local whose text is the name of one of ``values`` is that object; otherwise it is the number or constant of that
    text, or the text itself.
    """
    return [_frame(line, values) for line in lines]


def _frame(line: str, values: dict[str, object]) -> RecordedFrame:
    name, place, *found = line.split()
    file, _, number = place.rpartition(":")
    pairs = [one.partition("=")[::2] for one in found]
    position = CodePosition(file, name.rpartition(".")[2], name, int(number))
    return RecordedFrame(position, {key: values[text] if text in values else _value(text) for key, text in pairs})


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def thread(frames: Sequence[RecordedFrame], os_thread_id: int = MAIN, name: str = "MainThread") -> MemoryThread:
    return PythonThread(0x7F00 + os_thread_id, os_thread_id, name, cast(Sequence[MemoryFrame], frames))


@dataclass
class RecordedProcess:
    """This process's objects, modules and frames, and recorded threads."""

    own: PythonProcess
    threads: list[MemoryThread] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return Interpreter(None, OwnPython(), proc.mapped_files(os.getpid()))


Kernel = Callable[[SystemCall | None], None]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Set the system call in which the kernel reports every thread as blocked."""

    def set_call(call: SystemCall | None) -> None:
        monkeypatch.setattr(thread_calls, "system_call", lambda pid, tid: call)

    set_call(BLOCKED)
    return set_call


Read = Callable[..., Call | None]


def calls_of(threads: Sequence[MemoryThread], own: PythonProcess, below: Sequence[int] = ()) -> BlockedCalls:
    process = cast(PythonProcess, RecordedProcess(own, list(threads)))
    return BlockedCalls(process, lambda frame: frame.position.file == APP, Surroundings(lambda: below))


@pytest.fixture
def read(interpreter: Interpreter) -> Iterator[Read]:
    """Read the call of the first of these threads."""
    with open_memory(os.getpid()) as memory:

        def read(*threads: MemoryThread, below: Sequence[int] = ()) -> Call | None:
            return calls_of(threads, PythonProcess(memory, interpreter), below).call_of(threads[0])

        yield read


# Ray

REF_TYPE: Any = type("ray._raylet.ObjectRef", (bytes,), {"__slots__": ()})
"""Ray's type by name; a bytes object has its data where an ObjectRef has its id."""
GENERATOR_TYPE: Any = type("ObjectRefGenerator", (), {})
OWNER = bytes(range(1, 29))


class Refs:
    """ObjectRefs in memory with consecutive ids and the same owner."""

    def __init__(self) -> None:
        text = b"\x0a\x04\x22\x02ab" + b"\x22\x1c" + OWNER
        self._address = ctypes.create_string_buffer(struct.pack("<Q16x", len(text)) + text)
        self._count = 0

    def make(self) -> tuple[Any, str]:
        """A ref and its id."""
        self._count += 1
        identity = self._count.to_bytes(8, "little") + b"\xff" * 12 + b"\x01\0\0\0" + b"\x01\0\0\0"
        pointer = struct.pack("<4xQ", ctypes.addressof(self._address) + 24)
        return REF_TYPE(identity + pointer), identity.hex()


@pytest.fixture
def refs() -> Refs:
    return Refs()


def get_objects(timeout: float = -1) -> str:
    return f"Worker.get_objects {RAY}/_private/worker.py:986 self=worker object_refs=refs timeout={timeout:g}"


def ray_wait(timeout: float = 10**6, num_returns: object = 1) -> str:
    arguments = f"ray_waitables=refs num_returns={num_returns} timeout={timeout:g} fetch_local=True"
    return f"wait {RAY}/_private/worker.py:3125 {arguments}"


@pytest.mark.parametrize(("timeout", "timeout_s"), [(-1, None), (2.5, 2.5), (0, 0.0)])
@pytest.mark.parametrize("collection", [list, tuple])
def test_ray_get_is_read(read: Read, refs: Refs, timeout: float, timeout_s: float | None, collection: type) -> None:
    (one, one_id), (two, two_id) = refs.make(), refs.make()
    frames = recorded(get_objects(timeout), f"get {RAY}/_private/worker.py:2858", USER, refs=collection([one, two]))

    need = NeededRefs(refs=(one_id, two_id), owners=(OWNER.hex(),) * 2)
    assert read(thread(frames)) == Call(site="ray.get", frame=0, need=need, timeout_s=timeout_s)


def test_ray_get_has_the_name_of_its_caller(read: Read, refs: Refs) -> None:
    (ref, _) = refs.make()
    lines = [get_objects(), f"get {RAY}/_private/worker.py:2858", f"Queue.get {RAY}/util/queue.py:157"]

    call = read(thread(recorded(*lines, USER, refs=[ref])))

    assert call is not None
    assert (kind_of(call), name_of(call)) == ("ray.get", "Queue.get of ray.util.queue")


@pytest.mark.parametrize("place", CHANNEL_READ.places, ids=lambda place: place.function)
def test_a_compiled_graphs_channel_is_no_wait_for_its_ref(read: Read, refs: Refs, place: Place) -> None:
    (ref, _) = refs.make()
    frames = recorded(get_objects(3), f"Channel.{place.function} /site-packages{place.file}:520", refs=[ref])

    assert read(thread(frames)) == Call(site=CHANNEL_READ.id, frame=1, need=ProcessObject(), timeout_s=3.0)


def test_ray_get_of_something_else_is_unread(read: Read) -> None:
    nothing = recorded(f"Worker.get_objects {RAY}/_private/worker.py:986 self=worker timeout=-1")
    no_list = recorded(get_objects(), refs={"no": "list"})
    no_refs = recorded(get_objects(), refs=["no ref"])

    found = [read(thread(frames)) for frames in (nothing, no_list, no_refs)]

    assert [(call.site, call.frame) for call in found if call] == [("ray.get", 0)] * 3
    assert [call.need for call in found if call] == [
        Unreadable(reason="there is no local variable object_refs"),
        Unreadable(reason="a dict where a list or tuple was expected"),
        Unreadable(reason="a str where a ray._raylet.ObjectRef or ray.ObjectRef was expected"),
    ]


def test_another_function_of_that_name_is_not_rays(read: Read, refs: Refs, kernel: Kernel) -> None:
    (ref, _) = refs.make()

    call = read(thread(recorded(f"get_objects {APP}:3 object_refs=refs timeout=-1", refs=[ref])))

    assert call is not None
    assert call.site == "kernel.call"


def test_ray_wait_is_read(read: Read, refs: Refs) -> None:
    made = [refs.make() for _ in range(3)]

    call = read(thread(recorded(ray_wait(7.5, 2), USER, refs=[ref for ref, _ in made])))

    assert call is not None
    assert (call.site, call.frame, call.timeout_s) == ("ray.wait", 0, 7.5)
    ids = tuple(identity for _, identity in made)
    assert call.need == NeededRefs(refs=ids, owners=(OWNER.hex(),) * 3, count=2)


def test_ray_wait_replaces_no_timeout_by_a_number(read: Read, refs: Refs) -> None:
    (ref, _) = refs.make()

    call = read(thread(recorded(ray_wait(), USER, refs=[ref])))

    assert call is not None
    assert call.timeout_s is None


def generator(refs: Refs) -> tuple[Any, str]:
    value = GENERATOR_TYPE()
    value._generator_ref, identity = refs.make()
    return value, identity


def test_ray_wait_for_generators_needs_fewer_for_certain(read: Read, refs: Refs) -> None:
    (one, one_id), (ref, ref_id) = generator(refs), refs.make()

    enough = read(thread(recorded(ray_wait(num_returns=1), USER, refs=[one, ref])))
    both = read(thread(recorded(ray_wait(num_returns=2), USER, refs=[one, ref])))

    assert enough is not None
    assert both is not None
    needed = NeededRefs(refs=(one_id, ref_id), owners=(OWNER.hex(),) * 2, count=1)
    assert enough.need == needed
    assert both.need == replace(needed, inferred="items")


def test_a_wait_for_the_next_item_of_a_generator_is_read(read: Read, refs: Refs) -> None:
    value, identity = generator(refs)
    next_sync = f"ObjectRefGenerator._next_sync {RAY}/_private/object_ref_generator.py:207 self=generator"
    frames = recorded(ray_wait(), next_sync, USER, refs=[value], generator=value)

    call = read(thread(frames))

    assert call is not None
    assert (call.site, call.frame, call.timeout_s) == ("generator", 1, None)
    assert call.need == NeededRefs(refs=(identity,), owners=(OWNER.hex(),))


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("None", "num_returns is not a number"),
        ("<function>", "a str where a int or float or NoneType was expected"),
    ],
)
def test_ray_wait_without_a_number_is_unread(read: Read, refs: Refs, count: str, reason: str) -> None:
    (ref, _) = refs.make()

    call = read(thread(recorded(ray_wait(num_returns=count), USER, refs=[ref])))

    assert call == Call(site="ray.wait", frame=0, need=Unreadable(reason=reason))


# Threads

JOIN = f"Thread.join {LIB}/threading.py:1119 self=thread timeout=None"
JOINS = pytest.mark.parametrize(
    "lines",
    [(f"Thread._wait_for_tstate_lock {LIB}/threading.py:1139 self=thread block=True timeout=-1", JOIN), (JOIN,)],
    ids=["CPython 3.10 to 3.12", "CPython 3.13"],
)


def run_by(os_thread_id: int, value: object) -> MemoryThread:
    """The recorded thread of this Thread object."""
    bootstrap = f"Thread._bootstrap_inner {LIB}/threading.py:1045 self=thread"
    return thread(recorded(USER, bootstrap, thread=value), os_thread_id, "joined")


@JOINS
def test_a_joined_thread_is_found(read: Read, lines: tuple[str, ...]) -> None:
    joined, other = threading.Thread(), threading.Thread()
    waiter = thread(recorded(*lines, USER, thread=joined))

    call = read(waiter, run_by(OTHER, other), run_by(THIRD, joined))

    assert call == Call(site="thread.join", frame=len(lines) - 1, need=Executions(threads=(THIRD,)))


@JOINS
def test_a_joined_thread_whose_frames_change_is_known_by_its_ident(read: Read, lines: tuple[str, ...]) -> None:
    joined: Any = threading.Thread()
    other, running = thread(recorded(USER), OTHER), thread(recorded(USER), THIRD)
    joined._ident = running.thread_id

    call = read(thread(recorded(*lines, USER, thread=joined)), other, running)

    assert call == Call(site="thread.join", frame=len(lines) - 1, need=Executions(threads=(THIRD,)))


@JOINS
def test_a_joined_thread_that_was_not_read_is_unread(read: Read, lines: tuple[str, ...]) -> None:
    call = read(thread(recorded(*lines, USER, thread=threading.Thread())), run_by(OTHER, threading.Thread()))

    need = Unreadable(reason="the joined thread was not found")
    assert call == Call(site="thread.join", frame=len(lines) - 1, need=need)


def test_the_exit_of_a_process_waits_for_its_threads_that_are_no_daemons(read: Read, kernel: Kernel) -> None:
    last = thread(recorded(f"_shutdown {LIB}/threading.py:1590"))
    others = run_by(OTHER, threading.Thread()), run_by(THIRD, threading.Thread(daemon=True))

    call = read(last, *others)

    assert call == Call(site="process.exit", frame=0, need=Futures(each=((OTHER,),)))


def test_an_exit_whose_other_threads_are_unread_waits_for_something_unknown(read: Read, kernel: Kernel) -> None:
    last = thread(recorded(f"_shutdown {LIB}/threading.py:1590"))

    assert read(last, run_by(OTHER, "no thread")) == Call(site="process.exit", frame=0, need=ProcessObject())


def test_a_join_without_locals_is_unread(read: Read) -> None:
    call = read(thread(recorded(f"Thread.join {LIB}/threading.py:1119", USER)))

    need = Unreadable(reason="there is no local variable self")
    assert call == Call(site="thread.join", frame=0, need=need)


# Threads that sleep in the kernel


def line_of(place: Place) -> str:
    """A frame at this position."""
    local = f" {place.having}=value" if place.having else ""
    return f"{place.function} /lib{place.file}:1 self=owner{local}"


def places(*at: str, is_idle: bool = False) -> list[Any]:
    """The places of known sites, with these, that a recorded stack can show."""
    return [
        pytest.param(site, place, id=f"{place.file}:{place.function}")
        for site in SITES.values()
        for place in site.places
        if place.at in at and place.every_s is None and site.is_idle == is_idle
        if site not in (EVENT_LOOP, EXIT) and "/concurrent/futures/_base" not in place.file
    ]


@pytest.mark.parametrize(
    ("site", "place"), [one for one in places("leaf", "leaf or caller") if one.values[1].having is None]
)
def test_every_known_wait_has_its_name(read: Read, kernel: Kernel, site: Site, place: Place) -> None:
    owner = object()

    call = read(thread(recorded(line_of(place), USER, owner=owner)))

    assert call == Call(site=site.id, frame=0, need=ProcessObject(object_id=hex(id(owner))))


@pytest.mark.parametrize(("site", "place"), places("caller", "leaf or caller"))
def test_every_known_caller_gives_the_wait_its_name(read: Read, kernel: Kernel, site: Site, place: Place) -> None:
    condition, owner = threading.Condition(), object()

    call = read(thread(recorded(CONDITION, line_of(place), USER, CONDITION, condition=condition, owner=owner)))

    object_id = None if site.is_meeting else hex(id(owner))
    assert call == Call(site=site.id, frame=1, need=ProcessObject(object_id=object_id))


@pytest.mark.parametrize(("site", "place"), places("leaf", "caller", is_idle=True))
def test_idle_threads_wait_for_nothing(read: Read, kernel: Kernel, site: Site, place: Place) -> None:
    leaf = () if place.at == "leaf" else (CONDITION,)

    assert read(thread(recorded(*leaf, line_of(place)))) is None


def test_a_wait_on_a_condition_is_read(read: Read, kernel: Kernel) -> None:
    condition = threading.Condition()

    call = read(thread(recorded(CONDITION, USER, condition=condition)))

    need = ProcessObject(object_id=hex(id(condition)))
    assert call == Call(site="threading.Condition.wait", frame=0, need=need)


def test_callers_of_user_code_do_not_name_the_wait(read: Read, kernel: Kernel) -> None:
    outer = f"Queue.get {LIB}/queue.py:171 self=queue block=True timeout=None"

    call = read(thread(recorded(CONDITION, USER, outer, condition=threading.Condition())))

    assert call is not None
    assert call.site == "threading.Condition.wait"


@pytest.mark.parametrize(("timeout", "timeout_s"), [("30", 30.0), ("None", None), ("-1", None), ("<object>", None)])
def test_the_timeout_is_that_of_the_outermost_frame(
    read: Read, kernel: Kernel, timeout: str, timeout_s: float | None
) -> None:
    lines = [
        f"Popen._try_wait {LIB}/subprocess.py:2004 self=popen wait_flags=0",
        f"Popen._wait {LIB}/subprocess.py:2046 self=popen timeout={timeout}",
        f"Popen.communicate {LIB}/subprocess.py:1209 self=popen timeout={timeout}",
    ]

    call = read(thread(recorded(*lines, USER, popen=object())))

    assert call is not None
    assert (call.site, call.timeout_s) == ("subprocess.Popen.communicate", timeout_s)


def test_a_wait_for_the_end_of_a_child_process_is_read(read: Read, kernel: Kernel) -> None:
    lines = (f"Popen._try_wait {LIB}/subprocess.py:2004 self=popen wait_flags=0",)
    kernel(SystemCall("wait4", (77, 0, 0, 0, 0, 0)))

    call = read(thread(recorded(*lines, USER, popen=object())), below=[77, 78])
    bare = read(thread(recorded(USER)), below=[77])
    others = read(thread(recorded(USER)), below=[78])

    assert call is not None
    assert bare is not None
    assert (call.site, call.need) == ("subprocess.Popen.wait", Children(pids=(77,)))
    assert (bare.site, bare.need) == ("os.waitpid", Children(pids=(77,)))
    assert others is not None
    assert (others.site, others.need) == ("kernel.call", KernelObjects(system_call="wait4"))


@pytest.mark.parametrize("call", [None, SystemCall("nanosleep", (0, 0)), SystemCall(UNKNOWN, (3, 0, 1))], ids=str)
def test_running_sleeping_and_unknown_threads_have_no_call(read: Read, kernel: Kernel, call: SystemCall | None) -> None:
    kernel(call)

    assert read(thread(recorded(USER))) is None


@pytest.mark.parametrize(
    ("call", "sleeps"),
    [
        (SystemCall("nanosleep", (0, 0)), True),
        (SystemCall("clock_nanosleep", (0, 0, 1, 1)), True),
        (SystemCall("select", (0, 0, 0, 0, 1)), True),
        (SystemCall("select", (4, 1, 0, 0, 1)), False),
        (SystemCall("pselect6", (0, 0, 0, 0, 1, 1)), True),
        (SystemCall("pselect6", (4, 1, 0, 0, 1, 1)), False),
        (SystemCall(UNKNOWN, (3, 0, 1)), False),
        (None, False),
    ],
    ids=str,
)
def test_the_kernel_shows_which_thread_sleeps(
    interpreter: Interpreter, kernel: Kernel, call: SystemCall | None, sleeps: bool
) -> None:
    kernel(call)
    sleeper = thread(recorded(USER))
    with open_memory(os.getpid()) as memory:
        calls = calls_of([sleeper], PythonProcess(memory, interpreter))

        found = calls.call_of(sleeper)
        is_select = call is not None and call.name in ("select", "pselect6")
        assert (found.site if found else None) == ("kernel.call" if is_select and not sleeps else None)
        assert set(calls.asleep) == ({sleeper.os_thread_id} if sleeps else set())


def test_a_known_wait_that_the_kernel_does_not_show_blocked_is_none(read: Read, kernel: Kernel) -> None:
    kernel(None)

    assert read(thread(recorded(CONDITION, USER, condition=threading.Condition()))) is None


def test_threads_without_frames_or_ids_have_no_call(read: Read) -> None:
    assert read(thread([])) is None
    assert read(thread(recorded(CONDITION), 0)) is None


# Real threads on real locks


@contextlib.contextmanager
def asleep(target: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread that sleeps on a futex in this function; the caller resumes it."""
    started = threading.Thread(target=target, daemon=True)
    started.start()
    tid = wait_until(lambda: started.native_id, deadline_s=60, what=lambda: "its id")

    marks: list[str | None] = [None]

    def is_asleep() -> bool:
        """It did not run since the last poll; a thread that waits for the GIL wakes periodically."""
        marks.append(proc.scheduler_mark(os.getpid(), tid))
        call = proc.system_call(os.getpid(), tid)
        return call is not None and call.futex is not None and marks[-1] == marks[-2]

    wait_until(is_asleep, deadline_s=60, what=lambda: "it to sleep")
    yield started
    started.join(60)


ReadLive = Callable[[threading.Thread], Call | None]


@pytest.fixture
def read_live(interpreter: Interpreter) -> ReadLive:
    """Read the call of a thread of this process from memory, with all its threads."""

    def read(waiter: threading.Thread) -> Call | None:
        with open_memory(os.getpid(), keeps_pages=True) as memory:
            process = PythonProcess(memory, interpreter, os_thread_ids=proc.threads(os.getpid()))
            (found,) = [one for one in process.threads if one.os_thread_id == waiter.native_id]
            return BlockedCalls(process, lambda frame: frame.position.file == APP).call_of(found)

    return read


def test_a_lock_is_held_by_the_thread_in_its_with_block(read_live: ReadLive) -> None:
    lock, over = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            over.wait()

    def want() -> None:
        lock.acquire()

    with asleep(hold) as holder, asleep(want) as waiter:
        call = read_live(waiter)
        over.set()

    held = Executions(threads=(holder.native_id or 0,), object_id=hex(id(lock)), inferred="with block")
    assert call == Call(site="threading.Lock.acquire", frame=0, need=held)


def test_a_lock_without_a_known_holder_is_read(read_live: ReadLive) -> None:
    lock = threading.Lock()
    lock.acquire()

    with asleep(lambda: lock.acquire(timeout=600)) as waiter:
        call = read_live(waiter)
        lock.release()

    assert call is not None
    assert (call.site, call.timeout_s) == ("threading.Lock.acquire", 600.0)
    assert call.need == ProcessObject(object_id=hex(id(lock)))


def test_an_rlock_names_its_owner(read_live: ReadLive) -> None:
    lock, over = threading.RLock(), threading.Event()

    def hold() -> None:
        lock.acquire()
        over.wait()
        lock.release()

    def want() -> None:
        with lock:
            pass

    with asleep(hold) as holder, asleep(want) as waiter:
        call = read_live(waiter)
        over.set()

    assert call is not None
    assert call.site == "threading.RLock.acquire"
    assert call.need == Executions(threads=(holder.native_id or 0,), object_id=hex(id(lock)))


def test_a_wait_on_a_simple_queue_is_read(read_live: ReadLive) -> None:
    items: queue.SimpleQueue[None] = queue.SimpleQueue()

    with asleep(lambda: items.get()) as waiter:
        call = read_live(waiter)
        items.put(None)

    assert call is not None
    assert (call.site, call.need) == ("queue.SimpleQueue.get", ProcessObject(object_id=hex(id(items))))


def test_a_wait_on_a_condition_with_a_timeout_is_read(read_live: ReadLive) -> None:
    event = threading.Event()

    with asleep(lambda: event.wait(600)) as waiter:
        call = read_live(waiter)
        event.set()

    assert call is not None
    assert (call.site, call.timeout_s) == ("threading.Event.wait", 600.0)
    assert call.need == ProcessObject(object_id=hex(id(event)))


def test_a_condition_that_was_notified_waits_for_its_lock(read_live: ReadLive) -> None:
    """The innermost frame is ``Condition.wait`` then."""
    condition = threading.Condition(threading.Lock())

    def wait() -> None:
        with condition:
            condition.wait()

    with asleep(wait) as waiter:
        condition.acquire()
        condition.notify()
        lock = condition._lock  # type: ignore[attr-defined]
        wait_until(lambda: is_wanted(waiter, lock), deadline_s=60, what=lambda: "it to take its lock back")
        call = read_live(waiter)
        condition.release()

    assert call is not None
    assert (kind_of(call), call.need) == ("lock", ProcessObject(object_id=hex(id(lock))))


def is_wanted(waiter: threading.Thread, lock: object) -> bool:
    """Whether the thread sleeps on this lock."""
    call = proc.system_call(os.getpid(), waiter.native_id or 0)
    if call is None or call.futex is None:
        return False
    with open_memory(os.getpid()) as memory:
        if sys.version_info >= (3, 14):
            return memory.pointer(call.futex - 8) == id(lock) + 16
        return memory.pointer(id(lock) + 16) == call.futex


class LostFrame(RecordedFrame):
    """A frame whose memory is unmapped."""

    @property
    def locals(self) -> Sequence[int]:
        raise UnreadableMemory("not mapped")


def test_an_unreadable_wait_is_reported_for_its_thread(interpreter: Interpreter, kernel: Kernel) -> None:
    lost = thread([LostFrame(CodePosition(APP, "load", "load", 7), {})])
    with open_memory(os.getpid()) as memory:
        calls = calls_of([lost], PythonProcess(memory, interpreter))

        assert calls.call_of(lost) is None
        assert calls.unreadable == {MAIN: "not mapped"}


# Futures

FUTURES = f"{LIB}/concurrent/futures"
RESULT = f"Future.result {FUTURES}/_base.py:451 self=future timeout=4"
WORKER = f"_worker {FUTURES}/thread.py:83 executor_reference=ref work_queue=queue work_item=item"


def result_of(future: object, line: str = RESULT) -> MemoryThread:
    return thread(recorded(CONDITION, line, USER, condition=threading.Condition(), future=future))


def item_of(future: Future[None]) -> Any:
    arguments: Any = ((print, (), {}),) if sys.version_info >= (3, 14) else (print, (), {})
    return _WorkItem(future, *arguments)


def runs(item: object, items: object, os_thread_id: int) -> MemoryThread:
    """A thread of an executor that runs this item."""
    lines = (USER, f"_WorkItem.run {FUTURES}/thread.py:58 self=item", WORKER)
    return thread(recorded(*lines, item=item, queue=items), os_thread_id, "ThreadPoolExecutor-0_0")


def is_free(items: object, os_thread_id: int) -> MemoryThread:
    return thread(recorded(WORKER, queue=items), os_thread_id, "ThreadPoolExecutor-0_1")


def test_a_future_is_given_by_the_thread_that_runs_it(read: Read, kernel: Kernel) -> None:
    future, items = Future[None](), queue.SimpleQueue[Any]()

    call = read(result_of(future), runs(item_of(future), items, OTHER), is_free(items, THIRD))

    need = Executions(threads=(OTHER,), object_id=hex(id(future)))
    assert call == Call(site="Future.result", frame=1, need=need, timeout_s=4.0)


def test_a_future_in_the_queue_is_given_by_any_thread_of_its_executor(read: Read, kernel: Kernel) -> None:
    future, other, items = Future[None](), Future[None](), queue.SimpleQueue[Any]()
    items.put(item_of(future))

    line = f"Future.exception {FUTURES}/_base.py:470 self=future timeout=None"
    call = read(result_of(future, line), runs(item_of(other), items, OTHER), is_free(items, THIRD))

    assert call is not None
    assert (call.site, call.timeout_s) == ("Future.exception", None)
    identity = hex(id(future))
    assert call.need == Executions(threads=(OTHER, THIRD), object_id=identity, inferred="queued future")


def wait_for(when: str, *futures: Future[None]) -> MemoryThread:
    line = f"wait {FUTURES}/_base.py:305 fs=futures timeout=None return_when=when"
    event = f"Event.wait {LIB}/threading.py:629 self=event timeout=None signaled=False"
    values = {"futures": set(futures), "when": when, "condition": threading.Condition()}
    return thread(recorded(CONDITION, event, line, USER, **values))


def test_a_wait_for_all_futures_is_read(read: Read, kernel: Kernel) -> None:
    done, *pending = (Future[None]() for _ in range(3))
    done.set_result(None)
    items = queue.SimpleQueue[Any]()
    running = [runs(item_of(future), items, tid) for future, tid in zip(pending, (OTHER, THIRD), strict=True)]

    every = read(wait_for("ALL_COMPLETED", done, *pending), *running)
    first = read(wait_for("FIRST_COMPLETED", *pending), *running)

    assert every is not None
    assert first is not None
    assert every.site == "concurrent.futures.wait"
    assert isinstance(every.need, Futures)
    assert sorted(every.need.each) == [(OTHER,), (THIRD,)]
    assert first.need == Executions(threads=(OTHER, THIRD))


def test_a_wait_for_the_next_future_is_read(read: Read, kernel: Kernel) -> None:
    known, unknown, items = Future[None](), Future[None](), queue.SimpleQueue[Any]()
    line = f"as_completed {FUTURES}/_base.py:243 fs=list timeout=None pending=waited_for"
    runner = runs(item_of(known), items, OTHER)

    def call_for(*futures: Future[None]) -> Call | None:
        values = {"condition": threading.Condition(), "waited_for": set(futures)}
        return read(thread(recorded(CONDITION, line, USER, **values)), runner)

    one, both = call_for(known), call_for(known, unknown)

    assert one is not None
    assert both is not None
    assert (one.site, one.threads) == ("concurrent.futures.as_completed", (OTHER,))
    assert both.need == ProcessObject()  # any thread may complete the other


def test_a_future_without_a_known_giver_is_read(read: Read, kernel: Kernel) -> None:
    future = Future[None]()

    call = read(result_of(future))

    assert call is not None
    assert (call.site, call.need) == ("Future.result", ProcessObject(object_id=hex(id(future))))


def test_an_object_that_is_no_future_is_unread(read: Read, kernel: Kernel) -> None:
    class Stranger:
        def __init__(self) -> None:
            self.value = 1

    call = read(result_of(Stranger()))

    assert call is not None
    assert kind_of(call) == "future"
    assert call.need == Unreadable(reason="a Stranger where a Future was expected")


# Event loops

LOOP_LINES = (
    f"EpollSelector.select {LIB}/selectors.py:468 self=selector timeout=-1",
    f"BaseEventLoop._run_once {LIB}/asyncio/base_events.py:1884 self=loop timeout=None",
    f"BaseEventLoop.run_forever {LIB}/asyncio/base_events.py:607 self=loop",
)
UNTIL = f"BaseEventLoop.run_until_complete {LIB}/asyncio/base_events.py:640 self=loop future=task new_task=False"


@contextlib.contextmanager
def a_task() -> Iterator[asyncio.Task[None]]:
    """A task that has not begun, on a loop that does not run."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    try:
        yield task
    finally:
        loop.run_until_complete(task)
        loop.close()


def test_an_event_loop_that_runs_one_coroutine_waits_for_it(read: Read, kernel: Kernel) -> None:
    with a_task() as task:
        call = read(thread(recorded(*LOOP_LINES, UNTIL, USER, task=task)))

    assert call == Call(site=UNTIL_COMPLETE.id, frame=3, need=Awaitables(coroutines=(hex(id(task)),)))


def test_an_event_loop_that_runs_for_ever_waits_for_any_event(read: Read, kernel: Kernel) -> None:
    plain = read(thread(recorded(*LOOP_LINES, USER)))
    of_an_actor = read(thread(recorded(*LOOP_LINES, USER), name="AsyncIO Thread: default"))

    assert plain is not None
    assert plain.site == EVENT_LOOP.id
    assert of_an_actor is None


def test_a_loop_blocked_in_a_call_waits_for_its_dependency(read: Read, refs: Refs) -> None:
    (ref, identity) = refs.make()
    lines = (get_objects(), f"get {RAY}/_private/worker.py:2858", USER)

    call = read(thread(recorded(*lines, *LOOP_LINES[1:], refs=[ref]), name="AsyncIO Thread: default"))

    assert call is not None
    assert (call.site, call.refs) == ("ray.get", (identity,))
