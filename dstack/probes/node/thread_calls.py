"""The blocking call of a thread, with its dependencies.

Seen on Ray 2.46 and 2.60 and on CPython 3.10 to 3.15. A thread counts as waiting only where its innermost frame is a
known wait, or the kernel shows that it sleeps on a lock of that frame.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dstack.call_sites import (
    EVENT_LOOP,
    EXIT,
    KERNEL,
    LOCK,
    MAIN_LOOP,
    PROCESS_LOCK,
    RAY_GET,
    RAY_RETURN,
    RLOCK,
    SIMPLE_QUEUE,
    THREAD_JOIN,
    UNTIL_COMPLETE,
    WAITPID,
    kind_of,
)
from dstack.libraries.compiled_graphs import reading as compiled_graphs
from dstack.libraries.data import reading as data
from dstack.libraries.torch.stores import StoreCalls
from dstack.libraries.vllm import reading as vllm
from dstack.observed.call_site import Site
from dstack.observed.calls import (
    Awaitables,
    Call,
    ChannelCall,
    Children,
    End,
    Executions,
    Futures,
    Inference,
    KernelObjects,
    LostOwner,
    Need,
    ProcessObject,
    QueueCall,
    Unreadable,
)
from dstack.probes.node.asyncio.event_loops import may_have_loops
from dstack.probes.node.asyncio.suspended_coroutines import Coroutines
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import MemoryThread, PythonProcess
from dstack.probes.node.group_calls import GroupCalls, wait_for_tensors
from dstack.probes.node.named_values import local_in
from dstack.probes.node.procfs.proc import SystemCall, system_call
from dstack.probes.node.procfs.proc import threads as threads_of
from dstack.probes.node.ray_calls import RayWaits, unread_call
from dstack.probes.node.stacks.origins import package_of
from dstack.probes.node.system_calls import KernelWaits, Surroundings, remaining_sleep_s, with_host
from dstack.probes.node.thread_stacks import (
    ASYNCIO,
    IN_CHANNEL,
    AnyFrame,
    function_of,
    is_event_loop,
    is_in,
    poll_of,
    site_in,
    site_of_leaf,
    sites_outward,
)
from dstack.probes.node.waits import locks
from dstack.probes.node.waits.executors import POOL_FILE, Executors, pool_processes
from dstack.probes.node.waits.locks import Locks, SleptOn
from dstack.probes.node.waits.reachable_objects import NOTHING, WaitsOn, of_thread

OF_THREADS: Sequence[Callable[[Objects, Sequence[MemoryFrame], Call | None, str], Call | None]] = (
    compiled_graphs.completed,
    data.completed,
)
"""The hooks of libraries, which complete a thread's call by its frames, leaf first, and the id of its method's actor.

They return any other call unchanged, and raise ``UnreadableMemory``.
"""
MAX_PATH = 1_024
FUTURES_FILE = "/concurrent/futures/_base.py"
LOCKS = {locks.LOCK: LOCK, locks.RLOCK: RLOCK}
OTHERS = {locks.SIMPLE_QUEUE: SIMPLE_QUEUE, locks.PROCESS_LOCK: PROCESS_LOCK}
"""The sites of waits for objects of C, by the type of the object."""


class BlockedCalls:
    """The calls that the threads of one process are blocked in.

    ``is_user`` tests whether a frame is the user's. ``unreadable`` says, by OS thread id, why the wait of a thread
    could not be read.
    """

    def __init__(
        self, process: PythonProcess, is_user: Callable[[AnyFrame], bool], around: Surroundings | None = None
    ) -> None:
        self._process = process
        self._objects = process.objects
        self._pid = process.memory.pid
        self._is_user = is_user
        self._around = around or Surroundings()
        self._rays = RayWaits(process.objects, is_user)
        self._kernel = KernelWaits(self._around.tables, process.memory)
        self.unreadable: dict[int, str] = {}
        self.asleep: dict[int, float | None] = {}
        """The threads that were in ``time.sleep`` when their calls were read, and how long they will sleep on."""

    def call_of(self, thread: MemoryThread, actor_id: str = "") -> Call | None:
        """The wait of a thread; None where it is not known to wait, or is an event loop that waits for work.

        ``actor_id`` is that of the actor whose method it runs, if any.
        """
        frames = thread.frames
        if not frames or not thread.os_thread_id:
            return None
        try:
            call = self._rays.call(frames) or self._thread_join(frames) or self._store_call(thread)
            call = call or self._sleep(thread)
            for complete in OF_THREADS:
                call = complete(self._objects, frames, call, actor_id)
            call = vllm.completed(self._objects, frames, call, self._around.tables)
        except UnreadableMemory as error:
            self.unreadable[thread.os_thread_id] = str(error)
            return None
        if call is None or isinstance(call.need, (ChannelCall, QueueCall)):
            return call
        if call.site == EVENT_LOOP.id:
            return None if is_event_loop(thread) else self._event_loop(frames) or call
        return self._named(call, frames)

    def waits_on(self, thread: MemoryThread, call: Call | None) -> WaitsOn:
        """The objects that this call of a thread waits on, which others in the process may reach."""
        try:
            return of_thread(call, thread.frames, self._objects, self._is_user) if call else NOTHING
        except UnreadableMemory:
            return NOTHING

    # Threads

    def _thread_join(self, frames: Sequence[MemoryFrame]) -> Call | None:
        """``Thread.join``: the leaf from 3.13 on, the caller of ``_wait_for_tstate_lock`` before."""
        at = 1 if function_of(frames[0]) == "_wait_for_tstate_lock" and len(frames) > 1 else 0
        frame = frames[at]
        if not is_in(frame, "/threading.py", "join"):
            return None
        try:
            joined = local_in(frame, "self")
            timeout = self._seconds(frame, "timeout")
        except UnreadableMemory as error:
            return unread_call(THREAD_JOIN, at, error)
        runner = self._runner_of(joined)
        if runner is None:
            return unread_call(THREAD_JOIN, at, "the joined thread was not found")
        return Call(site=THREAD_JOIN.id, frame=at, need=Executions(threads=(runner,)), timeout_s=timeout)

    def _runner_of(self, thread_object: int) -> int | None:
        """The OS id of the thread that runs a Thread object, by its frames, or by its ident while these change."""
        if runner := next((os_id for one, os_id in self._thread_objects if one == thread_object), None):
            return runner
        with contextlib.suppress(UnreadableMemory):
            ident = self._objects.number(self._objects.attribute(thread_object, "_ident"))
            return next((other.os_thread_id for other in self._threads if other.thread_id == ident), None)
        return None

    def _threads_without_daemons(self) -> Need:
        """The threads that the exit of the process waits for."""
        found = tuple((os_id,) for one, os_id in self._thread_objects if not self._is_daemon(one))
        return Futures(each=found) if found else _object(None)

    @cached_property
    def _thread_objects(self) -> list[tuple[int, int]]:
        """The Thread objects that run, with the OS ids of their threads, by the outer frames of these."""
        frames = ((frame, thread) for thread in self._threads for frame in thread.frames)
        found = ((frame.local("self"), thread) for frame, thread in frames if frame.function == "_bootstrap_inner")
        return [(one, thread.os_thread_id) for one, thread in found if one]

    def _is_daemon(self, thread_object: int) -> bool:
        """Whether a Thread object is that of a daemon, or cannot be read."""
        with contextlib.suppress(UnreadableMemory):
            return self._objects.truth(self._objects.attribute(thread_object, "_daemonic")) is not False
        return True

    # Everything that sleeps in the kernel

    def _sleep(self, thread: MemoryThread) -> Call | None:
        blocked_in = system_call(self._pid, thread.os_thread_id)
        if blocked_in is None:
            return None
        frames = thread.frames
        leaf = site_of_leaf(frames)
        poll = self._poll(frames[0]) if blocked_in.futex is None else None
        is_asleep = blocked_in.is_sleep and not (leaf and leaf.polls)
        if is_asleep and leaf is MAIN_LOOP:
            return Call(site=RAY_RETURN.id, frame=0, need=_object(None))
        if is_asleep:
            self.asleep[thread.os_thread_id] = remaining_sleep_s(blocked_in, self._process.memory)
        if poll or is_asleep:
            return poll or self._file_poll(frames[0], self.asleep[thread.os_thread_id])
        if children := self._around.awaited_children(blocked_in):
            call = self._known_wait(frames, leaf or WAITPID, None)
            return replace(call, need=Children(pids=children)) if call else None
        if leaf is None or self._may_take_lock_back(frames[0]):
            slept_on = self._slept_on(thread, blocked_in)
            if slept_on is None and (leaf or thread.os_thread_id in self.unreadable):
                return None
            if slept_on is None:
                work = self.group_calls.work_call(frames[0], thread.os_thread_id, blocked_in)
                return work or (None if self._runs_loop(thread) else self._kernel_call(frames, blocked_in))
            if leaf and slept_on.address == frames[0].local("waiter"):
                return self._known_wait(frames, leaf, frames[0].local("self"))
            if slept_on.type_name in LOCKS:
                return self._lock(slept_on)
            return self._known_wait(frames, OTHERS[slept_on.type_name], slept_on.address, slept_on.timeout_s)
        call = self._known_wait(frames, leaf, frames[0].local("self"))
        if call is None:
            return None
        return with_host(self._in_kernel(self._with_group(call, thread, blocked_in), blocked_in), frames, self._objects)

    def _store_call(self, thread: MemoryThread) -> Call | None:
        """The wait for a store of torch.distributed, which shows as a poll of a socket, or as sleep."""
        if not self.group_calls.groups.torch.is_loaded or site_of_leaf(thread.frames) is not None:
            return None
        blocked_in = system_call(self._pid, thread.os_thread_id)
        is_possible = blocked_in is not None and (blocked_in.is_sleep or blocked_in.name == "poll")
        return self._stores.call(thread.frames[0], blocked_in) if blocked_in and is_possible else None

    @cached_property
    def _stores(self) -> StoreCalls:
        return StoreCalls(self._objects, self._around.tables, self._kernel)

    def _file_poll(self, leaf: MemoryFrame, left_s: float | None) -> Call | None:
        """The wait of a library's function that sleeps until a lock file is free, as torch's FileBaton and filelock."""
        if self._is_user(leaf):
            return None
        with contextlib.suppress(UnreadableMemory):
            owner = leaf.local("self")
            words = (*leaf.locals, *(self._objects.attribute_values(owner) if owner else ()))
            texts = (self._objects.text(word, MAX_PATH) for word in words if self._objects.is_a(word, "str"))
            end = next((end for text in texts if (end := self._kernel.lock_file(text))), None)
            if end is not None:
                need = KernelObjects(system_call="clock_nanosleep", ends=(end,))
                return Call(
                    site=KERNEL.id, frame=0, need=need, name=_library_call(leaf), timeout_s=math.ceil(left_s or 1)
                )
        return None

    def _runs_loop(self, thread: MemoryThread) -> bool:
        """Whether a thread runs an event loop of uvloop, which shows no frames of its own."""
        return is_event_loop(thread) or (self.has_loops and thread.thread_id in self.coroutines.loop_threads)

    def _kernel_call(self, frames: Sequence[MemoryFrame], blocked_in: SystemCall) -> Call | None:
        """A wait at no known site, by its system call; its name is that of the library's function, if there is one."""
        has_user = any(map(self._is_user, frames))
        if package_of(frames[0].position.file) == "ray" and not has_user:
            return None  # a thread of Ray's own
        name = None if self._is_user(frames[0]) else _library_call(frames[0])
        call = self._kernel.call(blocked_in, name, self._native_threads if has_user else ())
        return with_host(call, frames, self._objects) if call else None

    def _in_kernel(self, call: Call, blocked_in: SystemCall) -> Call:
        """The call at a known site, with what the kernel shows that it waits for."""
        if not isinstance(call.need, ProcessObject) or blocked_in.futex is not None or call.site == EVENT_LOOP.id:
            return call
        need = self._kernel.objects(blocked_in)
        known = (call.timeout_s, self._kernel.timeout_s(blocked_in))
        timeout_s = min((one for one in known if one is not None), default=None)
        return replace(call, need=need, timeout_s=timeout_s) if need and need.ends else call

    @cached_property
    def _native_threads(self) -> list[int]:
        """The OS ids of the threads of the process that do not run Python."""
        own = {thread.os_thread_id for thread in self._process.threads}
        return [thread for thread in threads_of(self._pid) if thread not in own]

    def _with_group(self, call: Call, thread: MemoryThread, blocked_in: SystemCall) -> Call:
        """The call with what it depends on, where it is one on a process group."""
        of_group = self.group_calls.call_of(thread.frames, call.frame, thread.os_thread_id, blocked_in)
        return replace(call, need=of_group) if of_group else call

    def _poll(self, leaf: MemoryFrame) -> Call | None:
        """A known function that waits by sleeping; the kernel shows it asleep, and not on a lock."""
        poll = poll_of(leaf)
        owner = leaf.local("self") if poll else 0
        if poll is None or not owner:
            return None
        site, every_s = poll
        return Call(site=site.id, frame=0, need=_object(owner), timeout_s=every_s)

    def _slept_on(self, thread: MemoryThread, blocked_in: SystemCall) -> SleptOn | None:
        if blocked_in.futex is None:
            return None
        try:
            return self._locks.slept_on(thread.frames[0], blocked_in)
        except UnreadableMemory as error:
            self.unreadable[thread.os_thread_id] = str(error)
            return None

    def _lock(self, lock: SleptOn) -> Call:
        """A lock, with the threads that hold it, or may hold it: an RLock has its owner."""
        site, is_rlock = LOCKS[lock.type_name], lock.type_name == locks.RLOCK
        call = Call(site=site.id, frame=0, need=_object(lock.address), timeout_s=lock.timeout_s)
        ids = {thread.thread_id: thread.os_thread_id for thread in self._threads}
        try:
            coroutines = tuple(map(hex, self.coroutines.chains.holders.get(lock.address, ()))) if self.has_loops else ()
            if is_rlock and not coroutines:
                return replace(call, need=self._owner(lock.address, ids))
            holders = [] if is_rlock else self._locks.holders(lock.address, self._threads)
        except UnreadableMemory as error:
            return replace(call, need=Unreadable(reason=str(error)))
        if not holders and not coroutines:
            is_alone = self._around.threads_of_parent is not None and len(threads_of(self._pid)) == 1
            is_lost = is_alone and lock.timeout_s is None and not self.has_loops
            return replace(call, need=LostOwner(object_id=hex(lock.address))) if is_lost else call
        threads = tuple(holder.os_thread_id for holder in holders)
        return replace(
            call,
            need=Executions(threads=threads, coroutines=coroutines, object_id=hex(lock.address), inferred="with block"),
        )

    def _owner(self, rlock: int, ids: Mapping[int, int]) -> Need:
        """The thread that holds an RLock; in a fork, it may have existed in the parent only."""
        ident = self._locks.owner(rlock)
        if owner := ids.get(ident):
            return Executions(threads=(owner,), object_id=hex(rlock))
        of_parent = self._around.threads_of_parent
        if of_parent is None or not ident or len(ids) < len(self._process.threads):
            return _object(rlock)
        return LostOwner(object_id=hex(rlock), owner=of_parent.get(ident, 0))

    def _known_wait(
        self, frames: Sequence[MemoryFrame], leaf: Site, owner: int | None, timeout_s: float | None = None
    ) -> Call | None:
        """A wait at a known site; its frame is the outermost one that belongs to it, ``owner`` what it waits on."""
        sites = [(0, leaf), *((at, site) for at, site in sites_outward(frames, self._is_user) if at)]
        if any(site.is_idle for _, site in sites):
            return None
        with contextlib.suppress(UnreadableMemory):
            if tensors := wait_for_tensors(self._objects, frames, self._threads, self._is_user):
                return tensors
        for at, site in sites:
            if at and is_in(frames[at], FUTURES_FILE):
                return self._future(frames, at, site)
        at, site = sites[-1]
        if at:
            owner = None if site.is_meeting else frames[at].local("self")
        if timeout_s is None and site.timeout == "local":
            timeout_s = self._timeout_s(frames[at::-1])
        need: Need = self._threads_without_daemons() if site is EXIT else _object(owner)
        if is_in(frames[at], POOL_FILE) and (result := frames[at].local("self")):
            below = self._around.below()
            if pids := tuple(pid for pid in pool_processes(self._objects, result) if pid in below):
                need = Children(pids=pids)
        return Call(site=site.id, frame=at, need=need, timeout_s=timeout_s)

    # Futures

    def _future(self, frames: Sequence[MemoryFrame], at: int, site: Site) -> Call:
        try:
            futures, needs_all = self._futures_of(frames[at])
            timeout_s = self._seconds(frames[at], "timeout")
            attributes = self._objects.attributes(futures[0]) if len(futures) == 1 else {}
            if ref := attributes.get("object_ref"):  # of ``ObjectRef.future()``
                return Call(site=RAY_GET.id, within=site.id, frame=at, need=self._rays.refs([ref]), timeout_s=timeout_s)
            object_id = hex(futures[0]) if len(futures) == 1 else None
            need = self._given_by(self._executors.pending(futures), object_id, needs_all=needs_all)
            return Call(site=site.id, frame=at, need=need, timeout_s=timeout_s)
        except UnreadableMemory as error:
            return unread_call(site, at, error)

    def _futures_of(self, frame: MemoryFrame) -> tuple[Sequence[int], bool]:
        """The futures that a function of ``concurrent.futures`` waits for, and whether it needs all of them."""
        match function_of(frame):
            case "result" | "exception":
                return [local_in(frame, "self")], True
            case "as_completed":
                return self._objects.set_items(local_in(frame, "pending")), False
            case _:
                needs_all = self._objects.text(local_in(frame, "return_when")) == "ALL_COMPLETED"
                return self._objects.set_items(local_in(frame, "fs")), needs_all

    def _given_by(self, futures: Sequence[int], object_id: str | None, *, needs_all: bool) -> Need:
        """The threads of which one must proceed, for all futures or for each."""
        found = [self._executors.givers(future) for future in futures]
        if len(futures) > 1 and self.has_loops:
            found = [one if one[0] else self._by_loop(future) for one, future in zip(found, futures, strict=True)]
        inferred: Inference | None = None if all(is_certain for _, is_certain in found) else "queued future"
        if needs_all and len(found) > 1:
            return Futures(each=tuple(threads for threads, _ in found), inferred=inferred)
        if len(futures) == 1 and not found[0][0] and self.has_loops:
            return self._given_by_loop(futures[0])
        if any(not threads for threads, _ in found):
            return ProcessObject(object_id=object_id)  # a thread that was not read may set it
        threads = tuple(sorted({thread for threads, _ in found for thread in threads}))
        return Executions(threads=threads, object_id=object_id, inferred=inferred)

    def _by_loop(self, future: int) -> tuple[tuple[int, ...], bool]:
        """The thread whose event loop runs the coroutine that sets a future's result, and whether that is certain."""
        thread = self.coroutines.sources.runner(future)
        return ((thread,), True) if thread else ((), False)

    def _given_by_loop(self, future: int) -> Need:
        """The coroutine that sets a future's result, or the thread whose event loop must start that coroutine."""
        if coroutine := self.coroutines.sources.givers.get(future):
            return Executions(coroutines=(hex(coroutine),), object_id=hex(future))
        if beginner := self.coroutines.sources.beginner(future):
            return Executions(threads=(beginner,), object_id=hex(future))
        return _object(future)

    # Event loops

    @cached_property
    def has_loops(self) -> bool:
        """Whether a thread may run an event loop."""
        return may_have_loops(self._process)

    def _event_loop(self, frames: Sequence[MemoryFrame]) -> Call | None:
        """The wait of an event loop that runs until one coroutine has ended."""
        for at, frame in enumerate(frames):
            name = {"run_until_complete": "future", "run": "task"}.get(function_of(frame))
            future = frame.local(name) if name and ASYNCIO in frame.file else None
            with contextlib.suppress(UnreadableMemory):
                if future and self.coroutines.is_task(future):
                    return Call(site=UNTIL_COMPLETE.id, frame=at, need=Awaitables(coroutines=(hex(future),)))
        return None

    def _ends_of_loop(self, thread_id: int) -> tuple[End, ...]:
        """What the event loop of a thread, by its Python id, watches that leads out of the process, while it waits."""
        thread = next((one for one in self._threads if one.thread_id == thread_id), None)
        blocked_in = system_call(self._pid, thread.os_thread_id) if thread else None
        need = self._kernel.objects(blocked_in) if blocked_in else None
        return tuple(replace(end, through=thread.name) for end in need.ends if end.identity) if need and thread else ()

    # Names

    def _named(self, call: Call, frames: Sequence[MemoryFrame]) -> Call:
        """The call with the outermost site of a library that made it, by which users know it."""
        sites = [site for at, site in sites_outward(frames, self._is_user) if at > call.frame]
        is_named = kind_of(call) == "lock" or site_in(frames[call.frame], IN_CHANNEL) is not None
        return call if is_named or not sites or sites[-1].is_idle else replace(call, within=sites[-1].id)

    # Values of locals

    def _seconds(self, frame: MemoryFrame, name: str) -> float | None:
        """The value of a local that refers to None or a number. Raises :class:`UnreadableMemory`."""
        return self._objects.number(local_in(frame, name))

    def _timeout_s(self, frames: Sequence[MemoryFrame]) -> float | None:
        """The first timeout among these frames that is not negative."""
        for frame in frames:
            name = "timeout" if frame.has("timeout") else "timeout_seconds"
            with contextlib.suppress(UnreadableMemory):
                timeout = self._seconds(frame, name)
                if timeout is not None and timeout >= 0:
                    return timeout
        return None

    def _may_take_lock_back(self, frame: MemoryFrame) -> bool:
        """Whether ``Condition.wait`` was notified or timed out, and may now wait to take its lock again."""
        if not is_in(frame, "/threading.py", "wait"):
            return False
        was_notified = self._objects.truth(frame.local("gotit"))
        return was_notified or not self._objects.is_a(frame.local("timeout"), "NoneType")

    # Read on demand

    @cached_property
    def _threads(self) -> list[MemoryThread]:
        return [thread for thread in self._process.threads if thread.os_thread_id]

    @cached_property
    def group_calls(self) -> GroupCalls:
        """The process groups of this process, and the calls on them."""
        return GroupCalls(self._process, partial(self._around.tables.listeners_at, self._pid))

    @cached_property
    def coroutines(self) -> Coroutines:
        """The coroutines of this process."""
        ids = [thread.thread_id for thread in self._threads]
        return Coroutines(self._process, self._executors, ids, self._ends_of_loop)

    @cached_property
    def _locks(self) -> Locks:
        return Locks(self._process)

    @cached_property
    def _executors(self) -> Executors:
        return Executors(self._threads, self._process)


def _library_call(leaf: MemoryFrame) -> str:
    """``Socket.recv_pyobj of zmq``: a function of a library in which a thread waits."""
    position = leaf.position
    return f"{(position.qualified or position.function).rpartition('<locals>.')[2]} of {package_of(position.file)}"


def _object(address: int | None) -> ProcessObject:
    return ProcessObject(object_id=hex(address) if address else None)
