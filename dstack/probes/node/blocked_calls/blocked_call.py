"""The blocking call of a thread, with its dependencies.

Seen on Ray 2.46 and 2.60 and on CPython 3.10 to 3.14. A thread counts as waiting only where its innermost frame is a
known wait, or the kernel shows that it sleeps on a lock of that frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

from dstack.probes.node.asyncio.await_targets import GENERATOR_FILE
from dstack.probes.node.asyncio.coroutines import Coroutines
from dstack.probes.node.asyncio.event_loops import may_have_loops
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.process import MemoryThread, PythonProcess
from dstack.probes.node.process_groups.data_groups import at_meeting
from dstack.probes.node.process_groups.group_calls import GroupCalls
from dstack.probes.node.procfs.children import awaited_children
from dstack.probes.node.procfs.proc import SystemCall, system_call
from dstack.probes.node.ray.object_refs import GENERATOR, object_refs, owners, refs_of
from dstack.probes.node.ray.tensor_transfers import wait_for_tensors
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.threads import Frame as AnyFrame
from dstack.probes.node.threads import function_of, is_event_loop, is_in
from dstack.probes.node.waits.channels import with_channel
from dstack.probes.node.waits.executors import Executors
from dstack.probes.node.waits.known_waits import (
    ASYNCIO,
    EVENT_LOOP,
    IDLE,
    IN_CHANNEL,
    Place,
    place_of,
    place_of_leaf,
    places_outward,
    poll_of,
)
from dstack.probes.node.waits.locks import LOCK, PROCESS_LOCK, RLOCK, SIMPLE_QUEUE, Locks, SleptOn
from dstack.probes.node.waits.process_pools import POOL_FILE, pool_processes
from dstack.probes.node.waits.shared_objects import NOTHING, WaitsOn, of_thread
from dstack.probes.node.wire import CallData, Dependencies

RAY_CALLS = {"get_objects": "ray.get", "wait": "ray.wait"}
"""The functions of Ray's worker that block, with the kind of their call; Ray 2.46 to 2.60."""
RAY_WAIT_FOR_EVER = 10**6
"""ray.wait replaces timeout=None by this many seconds before it blocks."""

FUTURES_FILE = "/concurrent/futures/_base.py"
NAMES_OF_LOCKS = {LOCK: "threading.Lock.acquire", RLOCK: "threading.RLock.acquire"}
NAMES_OF_OTHERS = {SIMPLE_QUEUE: "queue.SimpleQueue.get", PROCESS_LOCK: "multiprocessing lock"}


class BlockedCalls:
    """The calls that the threads of one process are blocked in.

    ``is_user`` tests whether a frame is the user's, ``below`` returns the processes that this one has started.
    ``unreadable`` says, by OS thread id, why the wait of a thread could not be read.
    """

    def __init__(
        self,
        process: PythonProcess,
        is_user: Callable[[AnyFrame], bool],
        below: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._process = process
        self._objects = process.objects
        self._pid = process.memory.pid
        self._is_user = is_user
        self._below = below
        self.unreadable: dict[int, str] = {}
        self.asleep: set[int] = set()
        """The threads that were in ``time.sleep`` when their calls were read."""

    def call_of(self, thread: MemoryThread, actor_id: str = "") -> CallData | None:
        """The wait of a thread; None where it is not known to wait, or is an event loop that waits for work.

        ``actor_id`` is that of the actor whose method it runs, if any.
        """
        frames = thread.frames
        if not frames or not thread.os_thread_id:
            return None
        try:
            call = self._ray_call(frames) or self._thread_join(frames) or self._sleep(thread)
            call = with_channel(self._objects, frames, call)
            call = at_meeting(call, frames, self._objects, actor_id) if call and actor_id else call
        except Unreadable as error:
            self.unreadable[thread.os_thread_id] = str(error)
            return None
        if call and "channel" in call:
            return call
        if call and call.get("what") == EVENT_LOOP:
            return None if is_event_loop(thread) else self._event_loop(frames) or call
        return self._named(call, frames) if call else None

    def waits_on(self, thread: MemoryThread, call: CallData | None) -> WaitsOn:
        """The objects that this call of a thread waits on, which others in the process may reach."""
        try:
            return of_thread(call, thread.frames, self._objects, self._is_user) if call else NOTHING
        except Unreadable:
            return NOTHING

    # Ray

    def _ray_call(self, frames: Sequence[Frame]) -> CallData | None:
        """``ray.get`` and ``ray.wait``, which are blocked in C++ when their own frames are the leaf."""
        kind = ray_call(frames[0])
        if kind is None:
            return None
        try:
            return self._ray_get(frames) if kind == "ray.get" else self._ray_wait(frames)
        except Unreadable as error:
            return {"kind": kind, "frame": 0, "unread": str(error)}

    def _ray_get(self, frames: Sequence[Frame]) -> CallData:
        """``Worker.get_objects(object_refs, timeout)``; -1 is no timeout."""
        refs = self._refs(self._objects.items(_address(frames[0], "object_refs")))
        timeout = self._seconds(frames[0], "timeout")
        timeout_s = None if timeout == -1 else timeout
        channel = place_of(frames[1], IN_CHANNEL) if len(frames) > 1 else None
        if channel:
            return {"kind": "other", "frame": 1, "what": channel.name, "timeout_s": timeout_s}
        return {"kind": "ray.get", "frame": 0, **refs, "timeout_s": timeout_s}

    def _ray_wait(self, frames: Sequence[Frame]) -> CallData:
        """``wait(ray_waitables, num_returns=, timeout=)``.

        A generator among them stands for its next item, and Ray does not say whether that is there already. If one
        waitable is enough, it is not, since this thread is still blocked.
        """
        items = self._objects.items(_address(frames[0], "ray_waitables"))
        timeout, count = self._seconds(frames[0], "timeout"), self._seconds(frames[0], "num_returns")
        if count is None:
            raise Unreadable("num_returns is not a number")
        call: CallData = {"kind": "ray.wait", "frame": 0, **self._refs(items)}
        call["timeout_s"] = None if timeout == RAY_WAIT_FOR_EVER else timeout
        at = next((i for i, frame in enumerate(frames) if is_next_of_generator(frame)), None)
        if at is not None and not any(map(self._is_user, frames[:at])):
            return {**call, "kind": "generator", "frame": at}
        generators = sum(self._objects.is_a(item, GENERATOR) for item in items)
        call["num_returns"] = int(count)
        if generators and count > 1:
            call["num_returns"] = max(1, int(count) - generators)
            call["inferred"] = "items of generators may be available already"
        return call

    def _refs(self, waitables: Sequence[int]) -> Dependencies:
        """The refs, for generators those of their tasks, with the workers that own them."""
        refs = refs_of(self._objects, waitables)
        return {"refs": object_refs(self._objects, refs), "owners": owners(self._objects, refs)}

    # Threads

    def _thread_join(self, frames: Sequence[Frame]) -> CallData | None:
        """``Thread.join``: the leaf from 3.13 on, the caller of ``_wait_for_tstate_lock`` before."""
        at = 1 if function_of(frames[0]) == "_wait_for_tstate_lock" and len(frames) > 1 else 0
        frame = frames[at]
        if function_of(frame) != "join" or not is_in(frame, "/threading.py"):
            return None
        try:
            joined = _address(frame, "self")
            timeout = self._seconds(frame, "timeout")
        except Unreadable as error:
            return {"kind": "thread.join", "frame": at, "unread": str(error)}
        runner = self._runner_of(joined)
        if runner:
            return {"kind": "thread.join", "frame": at, "threads": [runner], "timeout_s": timeout}
        return {"kind": "thread.join", "frame": at, "unread": "the joined thread was not found"}

    def _runner_of(self, thread_object: int) -> int | None:
        """The OS id of the thread that runs a Thread object, by its frames, or by its ident while these change."""
        for other in self._threads:
            if any(function_of(f) == "_bootstrap_inner" and f.local("self") == thread_object for f in other.frames):
                return other.os_thread_id
        with contextlib.suppress(Unreadable):
            ident = self._objects.number(self._objects.attribute(thread_object, "_ident"))
            return next((other.os_thread_id for other in self._threads if other.thread_id == ident), None)
        return None

    # Everything that sleeps in the kernel

    def _sleep(self, thread: MemoryThread) -> CallData | None:
        blocked_in = system_call(self._pid, thread.os_thread_id)
        if blocked_in is None:
            return None
        frames = thread.frames
        leaf = place_of_leaf(frames)
        poll = self._poll(frames[0]) if blocked_in.futex is None else None
        is_asleep = blocked_in.is_sleep and not (leaf and leaf.polls)
        if is_asleep:
            self.asleep.add(thread.os_thread_id)
        if poll or is_asleep:
            return poll
        name, children = awaited_children(self._pid, blocked_in, self._below)
        if children:
            call = self._known_wait(frames, leaf or Place("", "", name, ""), None)
            return {**call, "child_pids": children} if call else None
        if leaf is None or self._may_take_lock_back(frames[0]):
            slept_on = self._slept_on(thread, blocked_in)
            if slept_on is None:
                return None if leaf else self.group_calls.work_call(frames[0], thread.os_thread_id, blocked_in)
            if leaf and slept_on.address == frames[0].local("waiter"):
                return self._known_wait(frames, leaf, hex(frames[0].local("self")))
            if slept_on.type_name in NAMES_OF_LOCKS:
                return self._lock(slept_on)
            leaf = Place("", "", NAMES_OF_OTHERS[slept_on.type_name], "")
            return self._known_wait(frames, leaf, hex(slept_on.address), slept_on.timeout_s)
        identity = frames[0].local("self")
        call = self._known_wait(frames, leaf, hex(identity) if identity else None)
        return self._with_group(call, thread, blocked_in) if call else None

    def _with_group(self, call: CallData, thread: MemoryThread, blocked_in: SystemCall) -> CallData:
        """The call with what it depends on, where it is one on a process group."""
        of_group = self.group_calls.call_of(thread.frames, call["frame"], thread.os_thread_id, blocked_in)
        return {**call, "of_group": of_group} if of_group else call

    def _poll(self, leaf: Frame) -> CallData | None:
        """A known function that waits by sleeping; the kernel shows it asleep, and not on a lock."""
        poll = poll_of(leaf)
        owner = leaf.local("self") if poll else 0
        if poll is None or not owner:
            return None
        what = poll.place.name
        return {"kind": "other", "frame": 0, "what": what, "object_id": hex(owner), "timeout_s": poll.every_s}

    def _slept_on(self, thread: MemoryThread, blocked_in: SystemCall) -> SleptOn | None:
        if blocked_in.futex is None:
            return None
        try:
            return self._locks.slept_on(thread.frames[0], blocked_in)
        except Unreadable as error:
            self.unreadable[thread.os_thread_id] = str(error)
            return None

    def _lock(self, lock: SleptOn) -> CallData:
        """A lock, with the threads that hold it, or may hold it: an RLock has its owner."""
        call: CallData = {
            "kind": "lock",
            "frame": 0,
            "what": NAMES_OF_LOCKS[lock.type_name],
            "timeout_s": lock.timeout_s,
        }
        call["object_id"] = hex(lock.address)
        ids = {thread.thread_id: thread.os_thread_id for thread in self._threads}
        in_block: Dependencies = {"inferred": "it is in a with block of the lock"}
        try:
            coroutines = [hex(one) for one in self.coroutines.holders.get(lock.address, ())] if self.has_loops else []
            if lock.type_name == RLOCK and not coroutines:
                owner = ids.get(self._locks.owner(lock.address))
                return {**call, "threads": [owner]} if owner else call
            holders = self._locks.holders(lock.address, self._threads) if lock.type_name == LOCK else []
        except Unreadable as error:
            return {**call, "unread": str(error)}
        if not holders and not coroutines:
            return call
        return {**call, "threads": [holder.os_thread_id for holder in holders], "coroutines": coroutines, **in_block}

    def _known_wait(
        self, frames: Sequence[Frame], leaf: Place, identity: str | None, timeout_s: float | None = None
    ) -> CallData | None:
        """A wait that is known by name; its frame is the outermost one that belongs to it."""
        places = [(0, leaf), *((at, place) for at, place in places_outward(frames, self._is_user) if at)]
        if any(place.name == IDLE for _, place in places):
            return None
        with contextlib.suppress(Unreadable):
            if tensors := wait_for_tensors(self._objects, frames, self._threads, self._is_user):
                return tensors
        for at, place in places:
            if at and is_in(frames[at], FUTURES_FILE):
                return self._future(frames, at, place)
        at, place = places[-1]
        if at:
            outer = frames[at].local("self")
            identity = hex(outer) if outer and not place.is_meeting else None
        timeout_s = timeout_s or self._timeout_s(frames[at::-1])
        call: CallData = {"kind": "other", "frame": at, "what": place.name}
        if is_in(frames[at], POOL_FILE) and (result := frames[at].local("self")):
            below = self._below()
            call["child_pids"] = [pid for pid in pool_processes(self._objects, result) if pid in below]
        return {**call, "object_id": identity, "timeout_s": timeout_s}

    # Futures

    def _future(self, frames: Sequence[Frame], at: int, place: Place) -> CallData:
        call: CallData = {"kind": "future", "frame": at, "what": place.name}
        try:
            futures, needs_all = self._futures_of(frames[at])
            call["timeout_s"] = self._seconds(frames[at], "timeout")
            call["object_id"] = hex(futures[0]) if len(futures) == 1 else None
            attributes = self._objects.attributes(futures[0]) if len(futures) == 1 else {}
            if ref := attributes.get("object_ref"):  # of ``ObjectRef.future()``
                return {**call, "kind": "ray.get", **self._refs([ref])}
            return {**call, **self._given_by(self._executors.pending(futures), needs_all=needs_all)}
        except Unreadable as error:
            return {**call, "unread": str(error)}

    def _futures_of(self, frame: Frame) -> tuple[Sequence[int], bool]:
        """The futures that a function of ``concurrent.futures`` waits for, and whether it needs all of them."""
        match function_of(frame):
            case "result" | "exception":
                return [_address(frame, "self")], True
            case "as_completed":
                return self._objects.set_items(_address(frame, "pending")), False
            case _:
                needs_all = self._objects.text(_address(frame, "return_when")) == "ALL_COMPLETED"
                return self._objects.set_items(_address(frame, "fs")), needs_all

    def _given_by(self, futures: Sequence[int], *, needs_all: bool) -> Dependencies:
        """The threads of which one must proceed, for all futures or for each."""
        found = [self._executors.givers(future) for future in futures]
        if len(futures) > 1 and self.has_loops:
            found = [one if one[0] else self._by_loop(future) for one, future in zip(found, futures, strict=True)]
        given: Dependencies = {}
        if not all(is_certain for _, is_certain in found):
            given["inferred"] = "any thread of the executor may run the queued future"
        if needs_all and len(found) > 1:
            return {**given, "all_of": [list(threads) for threads, _ in found]}
        if len(futures) == 1 and not found[0][0]:
            return self._given_by_loop(futures[0]) if self.has_loops else {}
        if any(not threads for threads, _ in found):
            return {}  # a thread that was not read may set it
        return {**given, "threads": sorted({thread for threads, _ in found for thread in threads})}

    def _by_loop(self, future: int) -> tuple[tuple[int, ...], bool]:
        """The thread whose event loop runs the coroutine that sets a future's result, and whether that is certain."""
        thread = self.coroutines.targets.runner(future)
        return ((thread,), True) if thread else ((), False)

    def _given_by_loop(self, future: int) -> Dependencies:
        """The coroutine that sets a future's result, or the thread whose event loop must start that coroutine."""
        coroutine = self.coroutines.targets.givers.get(future)
        if coroutine:
            return {"coroutines": [hex(coroutine)]}
        beginner = self.coroutines.targets.beginner(future)
        return {"threads": [beginner]} if beginner else {}

    # Event loops

    @cached_property
    def has_loops(self) -> bool:
        """Whether a thread may run an event loop."""
        return may_have_loops(self._process)

    def _event_loop(self, frames: Sequence[Frame]) -> CallData | None:
        """The wait of an event loop that runs until one coroutine has ended."""
        for at, frame in enumerate(frames):
            name = {"run_until_complete": "future", "run": "task"}.get(function_of(frame))
            future = frame.local(name) if name and ASYNCIO in frame.file else None
            with contextlib.suppress(Unreadable):
                if future and self.coroutines.is_task(future):
                    return {"kind": "await", "frame": at, "what": EVENT_LOOP, "coroutines": [hex(future)]}
        return None

    # Names

    def _named(self, call: CallData, frames: Sequence[Frame]) -> CallData:
        """The call with the name of an outer function, where its kind is not precise enough."""
        names = [place.name for at, place in places_outward(frames, self._is_user) if at > call["frame"]]
        own = place_of(frames[call["frame"]], IN_CHANNEL) if call["kind"] == "other" else None
        if names and names[-1] != IDLE and call["kind"] != "lock" and own is None:
            call["what"] = names[-1]
        return call

    # Values of locals

    def _seconds(self, frame: Frame, name: str) -> float | None:
        """The value of a local that refers to None or a number. Raises :class:`Unreadable`."""
        return self._objects.number(_address(frame, name))

    def _timeout_s(self, frames: Sequence[Frame]) -> float | None:
        """The first timeout among these frames that is not negative."""
        for frame in frames:
            name = "timeout" if frame.has("timeout") else "timeout_seconds"
            with contextlib.suppress(Unreadable):
                timeout = self._seconds(frame, name)
                if timeout is not None and timeout >= 0:
                    return timeout
        return None

    def _may_take_lock_back(self, frame: Frame) -> bool:
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
        return GroupCalls(self._process)

    @cached_property
    def coroutines(self) -> Coroutines:
        """The coroutines of this process."""
        ids = [thread.thread_id for thread in self._threads]
        return Coroutines(self._process, self._executors, ids)

    @cached_property
    def _locks(self) -> Locks:
        return Locks(self._process)

    @cached_property
    def _executors(self) -> Executors:
        return Executors(self._threads, self._process)


def ray_call(leaf: AnyFrame) -> str | None:
    """The kind of Ray's call that blocks in C++ with this frame as the innermost, None for any other frame."""
    return RAY_CALLS.get(function_of(leaf)) if is_in(leaf, RAY_WORKER_FILE) else None


def is_next_of_generator(frame: AnyFrame) -> bool:
    """``ObjectRefGenerator.__next__`` in Python (Ray 2.60); in Cython (2.46) only its ``ray.wait`` is seen."""
    return is_in(frame, GENERATOR_FILE, "_next_sync")


def _address(frame: Frame, name: str) -> int:
    address = frame.local(name)
    if not address:
        raise Unreadable(f"there is no local variable {name}")
    return address
