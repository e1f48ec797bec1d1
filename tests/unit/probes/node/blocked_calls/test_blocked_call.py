"""What a thread waits for, by frames as they were recorded on Ray 2.60 and CPython 3.11 (others where named).

Objects that the frames refer to are this process's own, so that their memory is read as a worker's would be. The kernel
says what a test gives it; threads that sleep on real locks are asked for themselves. Nothing here needs Ray.
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
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dstack.probes.node.blocked_calls import blocked_call
from dstack.probes.node.blocked_calls.blocked_call import BlockedCalls
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.interpreter import Interpreter, OwnPython
from dstack.probes.node.cpython.memory import Unreadable, open_memory
from dstack.probes.node.cpython.process import MemoryThread, PythonProcess
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.proc import (
    CLOCK_NANOSLEEP,
    FUTEX,
    NANOSLEEP,
    PSELECT6,
    READ,
    SELECT,
    WAIT4,
    SystemCall,
)
from dstack.probes.node.threads import Position, PythonThread
from dstack.probes.node.waits.known_waits import CHANNELS, EVENT_LOOP, IDLE, NAMES, WAITS, Place
from dstack.probes.node.wire import CallData
from tests.processes import wait_until

LIB = "/usr/lib/python3.11"
RAY = "/site-packages/ray"
APP = "/srv/app/main.py"
MAIN, OTHER, THIRD = 500, 501, 502
"""OS thread ids."""
BLOCKED = SystemCall(FUTEX, (0x1000, 0, 0, 0, 0, 0))
CONDITION = (
    f"Condition.wait {LIB}/threading.py:327 self=condition timeout=None waiter=lock saved_state=None gotit=False"
)
USER = f"load {APP}:7"


# What frames and threads are made of


@dataclass(frozen=True)
class RecordedFrame:
    """A frame that was recorded, whose locals are objects of this process; it has no stack and is in no block."""

    position: Position
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

    A local whose text is the name of one of ``values`` is that object; else it is the number or constant that the
    text stands for, or where it stands for none, the text itself.
    """
    return [_frame(line, values) for line in lines]


def _frame(line: str, values: dict[str, object]) -> RecordedFrame:
    name, place, *found = line.split()
    file, _, number = place.rpartition(":")
    pairs = [one.partition("=")[::2] for one in found]
    position = Position(file, name.rpartition(".")[2], name, int(number))
    return RecordedFrame(position, {key: values[text] if text in values else _value(text) for key, text in pairs})


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def thread(frames: Sequence[RecordedFrame], os_thread_id: int = MAIN, name: str = "MainThread") -> MemoryThread:
    return PythonThread(0x7F00 + os_thread_id, os_thread_id, name, cast(Sequence[Frame], frames))


@dataclass
class RecordedProcess:
    """This process's objects, modules and frames, and threads that were recorded."""

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
    """Sets the system call that the kernel says every thread is blocked in."""

    def says(call: SystemCall | None) -> None:
        monkeypatch.setattr(blocked_call, "system_call", lambda pid, tid: call)

    says(BLOCKED)
    return says


Read = Callable[..., CallData | None]


def calls_of(threads: Sequence[MemoryThread], own: PythonProcess, below: Sequence[int] = ()) -> BlockedCalls:
    process = cast(PythonProcess, RecordedProcess(own, list(threads)))
    return BlockedCalls(process, lambda frame: frame.position.file == APP, lambda: below)


@pytest.fixture
def read(interpreter: Interpreter) -> Iterator[Read]:
    """Reads the call of the first of these threads."""
    with open_memory(os.getpid()) as memory:

        def read(*threads: MemoryThread, below: Sequence[int] = ()) -> CallData | None:
            return calls_of(threads, PythonProcess(memory, interpreter), below).call_of(threads[0])

        yield read


# Ray

REF_TYPE: Any = type("ray._raylet.ObjectRef", (bytes,), {"__slots__": ()})
"""Ray's type by name, with an id in its place: a bytes object has its data where an ObjectRef has its id."""
GENERATOR_TYPE: Any = type("ObjectRefGenerator", (), {})
OWNER = bytes(range(1, 29))


class Refs:
    """ObjectRefs as they are in memory, with ids that count up; all have the same owner."""

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

    assert read(thread(frames)) == {
        "kind": "ray.get",
        "frame": 0,
        "refs": [one_id, two_id],
        "owners": [OWNER.hex()] * 2,
        "timeout_s": timeout_s,
    }


def test_ray_get_has_the_name_of_its_caller(read: Read, refs: Refs) -> None:
    (ref, _) = refs.make()
    lines = [get_objects(), f"get {RAY}/_private/worker.py:2858", f"Queue.get {RAY}/util/queue.py:157"]

    call = read(thread(recorded(*lines, USER, refs=[ref])))

    assert call is not None
    assert (call["kind"], call["what"]) == ("ray.get", "Queue.get of ray.util.queue")


@pytest.mark.parametrize("place", CHANNELS, ids=lambda place: place.function)
def test_a_compiled_graphs_channel_is_no_wait_for_its_ref(read: Read, refs: Refs, place: Place) -> None:
    (ref, _) = refs.make()
    frames = recorded(get_objects(3), f"Channel.{place.function} /site-packages{place.file}:520", refs=[ref])

    assert read(thread(frames)) == {"kind": "other", "frame": 1, "what": place.name, "timeout_s": 3.0}


def test_ray_get_of_something_else_is_unread(read: Read) -> None:
    nothing = recorded(f"Worker.get_objects {RAY}/_private/worker.py:986 self=worker timeout=-1")
    no_list = recorded(get_objects(), refs={"no": "list"})
    no_refs = recorded(get_objects(), refs=["no ref"])

    found = [read(thread(frames)) for frames in (nothing, no_list, no_refs)]

    assert [(call["kind"], call["frame"], call.keys() & {"refs"}) for call in found if call] == [
        ("ray.get", 0, set())
    ] * 3
    assert [call["unread"] for call in found if call] == [
        "there is no local variable object_refs",
        "a dict where a list or tuple was expected",
        "a str where a ray._raylet.ObjectRef or ray.ObjectRef was expected",
    ]


def test_another_function_of_that_name_is_not_rays(read: Read, refs: Refs, kernel: Kernel) -> None:
    (ref, _) = refs.make()

    assert read(thread(recorded(f"get_objects {APP}:3 object_refs=refs timeout=-1", refs=[ref]))) is None


def test_ray_wait_is_read(read: Read, refs: Refs) -> None:
    made = [refs.make() for _ in range(3)]

    call = read(thread(recorded(ray_wait(7.5, 2), USER, refs=[ref for ref, _ in made])))

    assert call is not None
    assert (call["kind"], call["frame"], call["num_returns"], call["timeout_s"]) == ("ray.wait", 0, 2, 7.5)
    assert call["refs"] == [identity for _, identity in made]
    assert "inferred" not in call


def test_ray_wait_replaces_no_timeout_by_a_number(read: Read, refs: Refs) -> None:
    (ref, _) = refs.make()

    call = read(thread(recorded(ray_wait(), USER, refs=[ref])))

    assert call is not None
    assert call["timeout_s"] is None


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
    assert enough["refs"] == both["refs"] == [one_id, ref_id]
    assert (enough["num_returns"], enough.get("inferred")) == (1, None)
    assert (both["num_returns"], both["inferred"]) == (1, "items of generators may be available already")


def test_a_wait_for_the_next_item_of_a_generator_is_read(read: Read, refs: Refs) -> None:
    value, identity = generator(refs)
    next_sync = f"ObjectRefGenerator._next_sync {RAY}/_private/object_ref_generator.py:207 self=generator"
    frames = recorded(ray_wait(), next_sync, USER, refs=[value], generator=value)

    call = read(thread(frames))

    assert call is not None
    assert (call["kind"], call["frame"], call["refs"], call["timeout_s"]) == ("generator", 1, [identity], None)
    assert "num_returns" not in call


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

    assert call == {"kind": "ray.wait", "frame": 0, "unread": reason}


# Threads

JOIN = f"Thread.join {LIB}/threading.py:1119 self=thread timeout=None"
JOINS = pytest.mark.parametrize(
    "lines",
    [(f"Thread._wait_for_tstate_lock {LIB}/threading.py:1139 self=thread block=True timeout=-1", JOIN), (JOIN,)],
    ids=["CPython 3.10 to 3.12", "CPython 3.13"],
)


def run_by(os_thread_id: int, value: object) -> MemoryThread:
    """A thread that runs this Thread object."""
    bootstrap = f"Thread._bootstrap_inner {LIB}/threading.py:1045 self=thread"
    return thread(recorded(USER, bootstrap, thread=value), os_thread_id, "joined")


@JOINS
def test_a_joined_thread_is_found(read: Read, lines: tuple[str, ...]) -> None:
    joined, other = threading.Thread(), threading.Thread()
    waiter = thread(recorded(*lines, USER, thread=joined))

    call = read(waiter, run_by(OTHER, other), run_by(THIRD, joined))

    assert call == {"kind": "thread.join", "frame": len(lines) - 1, "threads": [THIRD], "timeout_s": None}


@JOINS
def test_a_joined_thread_whose_frames_change_is_known_by_its_ident(read: Read, lines: tuple[str, ...]) -> None:
    joined: Any = threading.Thread()
    other, running = thread(recorded(USER), OTHER), thread(recorded(USER), THIRD)
    joined._ident = running.thread_id

    call = read(thread(recorded(*lines, USER, thread=joined)), other, running)

    assert call == {"kind": "thread.join", "frame": len(lines) - 1, "threads": [THIRD], "timeout_s": None}


@JOINS
def test_a_joined_thread_that_was_not_read_is_unread(read: Read, lines: tuple[str, ...]) -> None:
    call = read(thread(recorded(*lines, USER, thread=threading.Thread())), run_by(OTHER, threading.Thread()))

    assert call == {"kind": "thread.join", "frame": len(lines) - 1, "unread": "the joined thread was not found"}


def test_a_join_without_locals_is_unread(read: Read) -> None:
    call = read(thread(recorded(f"Thread.join {LIB}/threading.py:1119", USER)))

    assert call == {"kind": "thread.join", "frame": 0, "unread": "there is no local variable self"}


# What sleeps in the kernel


def line_of(place: Place) -> str:
    """A frame in this place."""
    local = f" {place.having}=value" if place.having else ""
    return f"{place.function} /lib{place.file}:1 self=owner{local}"


def shown(place: Place) -> str:
    return f"{place.file}:{place.function}"


def is_plain(place: Place) -> bool:
    return place.name not in (IDLE, EVENT_LOOP) and "/concurrent/futures/_base" not in place.file


@pytest.mark.parametrize("place", [one for one in WAITS if is_plain(one) and one.having is None], ids=shown)
def test_every_known_wait_has_its_name(read: Read, kernel: Kernel, place: Place) -> None:
    owner = object()

    call = read(thread(recorded(line_of(place), USER, owner=owner)))

    assert call == {"kind": "other", "frame": 0, "what": place.name, "object_id": hex(id(owner)), "timeout_s": None}


@pytest.mark.parametrize("place", [one for one in NAMES if is_plain(one)], ids=shown)
def test_every_known_caller_gives_the_wait_its_name(read: Read, kernel: Kernel, place: Place) -> None:
    condition, owner = threading.Condition(), object()

    call = read(thread(recorded(CONDITION, line_of(place), USER, CONDITION, condition=condition, owner=owner)))

    assert call is not None
    assert (call["kind"], call["frame"], call["what"]) == ("other", 1, place.name)
    assert call["object_id"] == (None if place.is_meeting else hex(id(owner)))


@pytest.mark.parametrize("place", [one for one in (*WAITS, *NAMES) if one.name == IDLE], ids=shown)
def test_idle_threads_wait_for_nothing(read: Read, kernel: Kernel, place: Place) -> None:
    leaf = () if place in WAITS else (CONDITION,)

    assert read(thread(recorded(*leaf, line_of(place)))) is None


def test_a_wait_on_a_condition_is_read(read: Read, kernel: Kernel) -> None:
    condition = threading.Condition()

    call = read(thread(recorded(CONDITION, USER, condition=condition)))

    identity = hex(id(condition))
    expected = {"what": "threading.Condition.wait", "object_id": identity, "timeout_s": None}
    assert call == {"kind": "other", "frame": 0, **expected}


def test_callers_of_user_code_do_not_name_the_wait(read: Read, kernel: Kernel) -> None:
    outer = f"Queue.get {LIB}/queue.py:171 self=queue block=True timeout=None"

    call = read(thread(recorded(CONDITION, USER, outer, condition=threading.Condition())))

    assert call is not None
    assert call["what"] == "threading.Condition.wait"


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
    assert (call["what"], call["timeout_s"]) == ("subprocess.Popen.communicate", timeout_s)


def test_a_wait_for_the_end_of_a_child_process_is_read(read: Read, kernel: Kernel) -> None:
    lines = (f"Popen._try_wait {LIB}/subprocess.py:2004 self=popen wait_flags=0",)
    kernel(SystemCall(WAIT4, (77, 0, 0, 0, 0, 0)))

    call = read(thread(recorded(*lines, USER, popen=object())), below=[77, 78])
    bare = read(thread(recorded(USER)), below=[77])
    others = read(thread(recorded(USER)), below=[78])

    assert call is not None
    assert bare is not None
    assert (call["what"], call["child_pids"]) == ("subprocess.Popen.wait", [77])
    assert (bare["kind"], bare["what"], bare["child_pids"]) == ("other", "os.waitpid", [77])
    assert others is None


@pytest.mark.parametrize("call", [None, SystemCall(NANOSLEEP, (0, 0)), SystemCall(READ, (3, 0, 1))], ids=str)
def test_running_sleeping_and_unknown_threads_have_no_call(read: Read, kernel: Kernel, call: SystemCall | None) -> None:
    kernel(call)

    assert read(thread(recorded(USER))) is None


@pytest.mark.parametrize(
    ("call", "sleeps"),
    [
        (SystemCall(NANOSLEEP, (0, 0)), True),
        (SystemCall(CLOCK_NANOSLEEP, (0, 0, 1, 1)), True),
        (SystemCall(SELECT, (0, 0, 0, 0, 1)), True),
        (SystemCall(SELECT, (4, 1, 0, 0, 1)), False),
        (SystemCall(PSELECT6, (0, 0, 0, 0, 1, 1)), True),
        (SystemCall(PSELECT6, (4, 1, 0, 0, 1, 1)), False),
        (SystemCall(READ, (3, 0, 1)), False),
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

        assert calls.call_of(sleeper) is None
        assert calls.asleep == ({sleeper.os_thread_id} if sleeps else set())


def test_a_known_wait_that_the_kernel_does_not_show_blocked_is_none(read: Read, kernel: Kernel) -> None:
    kernel(None)

    assert read(thread(recorded(CONDITION, USER, condition=threading.Condition()))) is None


def test_threads_without_frames_or_ids_have_no_call(read: Read) -> None:
    assert read(thread([])) is None
    assert read(thread(recorded(CONDITION), 0)) is None


# Real threads on real locks


@contextlib.contextmanager
def asleep(target: Callable[[], object]) -> Iterator[threading.Thread]:
    """A thread that sleeps on a futex in this function; the caller lets it go on."""
    started = threading.Thread(target=target, daemon=True)
    started.start()
    tid = wait_until(lambda: started.native_id, deadline_s=60, what=lambda: "its id")

    marks: list[str | None] = [None]

    def rests() -> bool:
        """It did not run since the last poll; a thread that waits for the GIL wakes up all the time."""
        marks.append(proc.scheduler_mark(os.getpid(), tid))
        call = proc.system_call(os.getpid(), tid)
        return call is not None and call.futex is not None and marks[-1] == marks[-2]

    wait_until(rests, deadline_s=60, what=lambda: "it to sleep")
    yield started
    started.join(60)


ReadLive = Callable[[threading.Thread], CallData | None]


@pytest.fixture
def read_live(interpreter: Interpreter) -> ReadLive:
    """Reads the call of a thread of this process, with all of its threads, from memory."""

    def read(waiter: threading.Thread) -> CallData | None:
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

    assert call == {
        "kind": "lock",
        "frame": 0,
        "what": "threading.Lock.acquire",
        "timeout_s": None,
        "object_id": hex(id(lock)),
        "threads": [holder.native_id],
        "coroutines": [],
        "inferred": "it is in a with block of the lock",
    }


def test_a_lock_without_a_known_holder_is_read(read_live: ReadLive) -> None:
    lock = threading.Lock()
    lock.acquire()

    with asleep(lambda: lock.acquire(timeout=600)) as waiter:
        call = read_live(waiter)
        lock.release()

    assert call is not None
    assert (call["kind"], call["object_id"], call["timeout_s"]) == ("lock", hex(id(lock)), 600.0)
    assert not call.keys() & {"threads", "inferred"}


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
    assert (call["kind"], call["what"]) == ("lock", "threading.RLock.acquire")
    assert call["threads"] == [holder.native_id]
    assert "inferred" not in call


def test_a_wait_on_a_simple_queue_is_read(read_live: ReadLive) -> None:
    items: queue.SimpleQueue[None] = queue.SimpleQueue()

    with asleep(lambda: items.get()) as waiter:
        call = read_live(waiter)
        items.put(None)

    assert call is not None
    assert (call["kind"], call["what"], call["object_id"]) == ("other", "queue.SimpleQueue.get", hex(id(items)))


def test_a_wait_on_a_condition_with_a_timeout_is_read(read_live: ReadLive) -> None:
    event = threading.Event()

    with asleep(lambda: event.wait(600)) as waiter:
        call = read_live(waiter)
        event.set()

    assert call is not None
    assert (call["kind"], call["what"], call["timeout_s"]) == ("other", "threading.Event.wait", 600.0)
    assert call["object_id"] == hex(id(event))


def test_a_condition_that_was_notified_waits_for_its_lock(read_live: ReadLive) -> None:
    """Then its innermost frame is still ``Condition.wait``."""
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
    assert (call["kind"], call["object_id"]) == ("lock", hex(id(lock)))


def is_wanted(waiter: threading.Thread, lock: object) -> bool:
    """Whether the thread sleeps on this lock by now."""
    call = proc.system_call(os.getpid(), waiter.native_id or 0)
    if call is None or call.futex is None:
        return False
    with open_memory(os.getpid()) as memory:
        if sys.version_info >= (3, 14):
            return memory.pointer(call.futex - 8) == id(lock) + 16
        return memory.pointer(id(lock) + 16) == call.futex


class LostFrame(RecordedFrame):
    """A frame whose memory is gone."""

    @property
    def locals(self) -> Sequence[int]:
        raise Unreadable("not mapped")


def test_an_unreadable_wait_is_reported_for_its_thread(interpreter: Interpreter, kernel: Kernel) -> None:
    lost = thread([LostFrame(Position(APP, "load", "load", 7), {})])
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

    identity = hex(id(future))
    assert call == {
        "kind": "future",
        "frame": 1,
        "what": "Future.result",
        "timeout_s": 4.0,
        "object_id": identity,
        "threads": [OTHER],
    }


def test_a_future_in_the_queue_is_given_by_any_thread_of_its_executor(read: Read, kernel: Kernel) -> None:
    future, other, items = Future[None](), Future[None](), queue.SimpleQueue[Any]()
    items.put(item_of(future))

    line = f"Future.exception {FUTURES}/_base.py:470 self=future timeout=None"
    call = read(result_of(future, line), runs(item_of(other), items, OTHER), is_free(items, THIRD))

    assert call is not None
    assert (call["what"], call["timeout_s"], call["threads"]) == ("Future.exception", None, [OTHER, THIRD])
    assert call["inferred"] == "any thread of the executor may run the queued future"


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
    assert (every["what"], sorted(every["all_of"])) == ("concurrent.futures.wait", [[OTHER], [THIRD]])
    assert "threads" not in every
    assert first["threads"] == [OTHER, THIRD]


def test_a_wait_for_the_next_future_is_read(read: Read, kernel: Kernel) -> None:
    known, unknown, items = Future[None](), Future[None](), queue.SimpleQueue[Any]()
    line = f"as_completed {FUTURES}/_base.py:243 fs=list timeout=None pending=waited_for"
    runner = runs(item_of(known), items, OTHER)

    def call_for(*futures: Future[None]) -> CallData | None:
        values = {"condition": threading.Condition(), "waited_for": set(futures)}
        return read(thread(recorded(CONDITION, line, USER, **values)), runner)

    one, both = call_for(known), call_for(known, unknown)

    assert one is not None
    assert both is not None
    assert (one["what"], one["threads"]) == ("concurrent.futures.as_completed", [OTHER])
    assert not both.keys() & {"threads", "all_of"}  # the other may be given by any thread


def test_a_future_without_a_known_giver_is_read(read: Read, kernel: Kernel) -> None:
    call = read(result_of(Future[None]()))

    assert call is not None
    assert call["kind"] == "future"
    assert not call.keys() & {"threads", "all_of", "inferred", "unread"}


def test_an_object_that_is_no_future_is_unread(read: Read, kernel: Kernel) -> None:
    class Stranger:
        def __init__(self) -> None:
            self.value = 1

    call = read(result_of(Stranger()))

    assert call is not None
    assert (call["kind"], call["unread"]) == ("future", "a Stranger where a Future was expected")


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

    assert call == {"kind": "await", "frame": 3, "what": EVENT_LOOP, "coroutines": [hex(id(task))]}


def test_an_event_loop_that_runs_for_ever_waits_for_any_event(read: Read, kernel: Kernel) -> None:
    plain = read(thread(recorded(*LOOP_LINES, USER)))
    of_an_actor = read(thread(recorded(*LOOP_LINES, USER), name="AsyncIO Thread: default"))

    assert plain is not None
    assert (plain["kind"], plain["what"]) == ("other", EVENT_LOOP)
    assert of_an_actor is None


def test_a_loop_blocked_in_a_call_waits_for_its_dependency(read: Read, refs: Refs) -> None:
    (ref, identity) = refs.make()
    lines = (get_objects(), f"get {RAY}/_private/worker.py:2858", USER)

    call = read(thread(recorded(*lines, *LOOP_LINES[1:], refs=[ref]), name="AsyncIO Thread: default"))

    assert call is not None
    assert (call["kind"], call["refs"]) == ("ray.get", [identity])
