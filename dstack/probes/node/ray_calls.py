"""``ray.get`` and ``ray.wait``, which threads are blocked in: with their refs, or from their frames alone.

Without memory, a thread certainly waits if its leaf is Ray's blocking function, but its refs are unknown. Ray reports
the refs that the process holds, and the thread waits for some of these. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dstack.call_sites import GENERATOR, RAY_GET, RAY_WAIT
from dstack.observed.call_site import Site
from dstack.observed.calls import Call, HeldRefs, ProcessObject, Refs, Unreadable
from dstack.probes.node.asyncio.future_sources import GENERATOR_FILE
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.named_values import local_in
from dstack.probes.node.ray_memory import GENERATOR as GENERATOR_TYPE
from dstack.probes.node.ray_memory import object_refs, owners, refs_of
from dstack.probes.node.stacks.origins import RAY_WORKER_FILE
from dstack.probes.node.thread_stacks import IN_CHANNEL, AnyFrame, PythonThread, TextFrame, function_of, is_in, site_in

RAY_CALLS = {"get_objects": RAY_GET, "wait": RAY_WAIT}
"""The functions of Ray's worker that block; Ray 2.46 to 2.60."""
RAY_WAIT_FOR_EVER = 10**6
"""ray.wait replaces timeout=None by this many seconds before it blocks."""

Terms = Callable[[Sequence[TextFrame], Site], tuple[float | None, str | None]]
"""From frames and the site of their call: its timeout in s, and an assumption. Raises :class:`UnreadableMemory`."""

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


def ray_call(leaf: AnyFrame) -> Site | None:
    """Ray's call that blocks in C++ with this frame as the innermost, None for any other frame."""
    return RAY_CALLS.get(function_of(leaf)) if is_in(leaf, RAY_WORKER_FILE) else None


def is_next_of_generator(frame: AnyFrame) -> bool:
    """``ObjectRefGenerator.__next__`` in Python (Ray 2.60); in Cython (2.46) only its ``ray.wait`` is seen."""
    return is_in(frame, GENERATOR_FILE, "_next_sync")


def unread_call(site: Site, frame: int, reason: object) -> Call:
    """The call at a site, in the frame of this index, whose dependencies could not be read."""
    return Call(site=site.id, frame=frame, need=Unreadable(reason=str(reason)))


class RayWaits:
    """The calls of Ray that threads of one process are blocked in; ``is_user`` tests whether a frame is the user's."""

    def __init__(self, objects: Objects, is_user: Callable[[AnyFrame], bool]) -> None:
        self._objects = objects
        self._is_user = is_user

    def call(self, frames: Sequence[MemoryFrame]) -> Call | None:
        """``ray.get`` and ``ray.wait``, which are blocked in C++ when their own frames are the leaf."""
        site = ray_call(frames[0])
        if site is None:
            return None
        try:
            return self._ray_get(frames) if site is RAY_GET else self._ray_wait(frames)
        except UnreadableMemory as error:
            return unread_call(site, 0, error)

    def _ray_get(self, frames: Sequence[MemoryFrame]) -> Call:
        """``Worker.get_objects(object_refs, timeout)``; -1 is no timeout."""
        refs = self.refs(self._objects.items(local_in(frames[0], "object_refs")))
        timeout = self._seconds(frames[0], "timeout")
        timeout_s = None if timeout == -1 else timeout
        channel = site_in(frames[1], IN_CHANNEL) if len(frames) > 1 else None
        if channel:
            return Call(site=channel.id, frame=1, need=ProcessObject(), timeout_s=timeout_s)
        return Call(site=RAY_GET.id, frame=0, need=refs, timeout_s=timeout_s)

    def _ray_wait(self, frames: Sequence[MemoryFrame]) -> Call:
        """``wait(ray_waitables, num_returns=, timeout=)``.

        A generator among them stands for its next item, and Ray does not say whether that is there already. If one
        waitable is enough, it is not, since this thread is still blocked.
        """
        items = self._objects.items(local_in(frames[0], "ray_waitables"))
        timeout, number = self._seconds(frames[0], "timeout"), self._seconds(frames[0], "num_returns")
        if number is None:
            raise UnreadableMemory("num_returns is not a number")
        refs = self.refs(items)
        timeout_s = None if timeout == RAY_WAIT_FOR_EVER else timeout
        at = next((i for i, frame in enumerate(frames) if is_next_of_generator(frame)), None)
        if at is not None and not any(map(self._is_user, frames[:at])):
            return Call(site=GENERATOR.id, frame=at, need=refs, timeout_s=timeout_s)
        generators = sum(self._objects.is_a(item, GENERATOR_TYPE) for item in items)
        if generators and number > 1:
            refs = replace(refs, count=max(1, int(number) - generators), inferred="items")
        else:
            refs = replace(refs, count=int(number))
        return Call(site=RAY_WAIT.id, frame=0, need=refs, timeout_s=timeout_s)

    def refs(self, waitables: Sequence[int]) -> Refs:
        """The refs, for generators those of their tasks, with the workers that own them."""
        refs = refs_of(self._objects, waitables)
        return Refs(refs=tuple(object_refs(self._objects, refs)), owners=tuple(owners(self._objects, refs)))

    def _seconds(self, frame: MemoryFrame, name: str) -> float | None:
        """The value of a local that refers to None or a number. Raises :class:`UnreadableMemory`."""
        return self._objects.number(local_in(frame, name))


# From frames alone


def shallow_call(frames: Sequence[TextFrame], terms_of: Terms) -> Call | None:
    """The call, whose refs are among those that are held; None where it is not known to be a wait for refs."""
    site = ray_call(frames[0]) if frames else None
    if site is None:
        return None
    if len(frames) > 1 and (channel := site_in(frames[1], IN_CHANNEL)):
        return Call(site=channel.id, frame=1, need=ProcessObject())
    if any(is_next_of_generator(frame) for frame in frames):
        return unread_call(site, 0, "the generator was not read")
    try:
        timeout_s, assumed = terms_of(frames, site)
    except UnreadableMemory as error:
        return unread_call(site, 0, error)
    return Call(site=site.id, frame=0, need=HeldRefs(assumed=assumed), timeout_s=timeout_s)


def shallow_calls(threads: Iterable[PythonThread[TextFrame]]) -> dict[int, Call]:
    """The calls of threads that py-spy has dumped, by OS id."""
    calls = {thread.os_thread_id: shallow_call(thread.frames, _timeout_in_locals) for thread in threads}
    return {thread: call for thread, call in calls.items() if thread and call}


def _timeout_in_locals(frames: Sequence[TextFrame], site: Site) -> tuple[float | None, str | None]:
    """The timeout among the arguments that py-spy shows; see :class:`RayWaits`."""
    timeout = _seconds_in(frames[0], "timeout")
    forever = -1 if site is RAY_GET else RAY_WAIT_FOR_EVER
    return None if timeout == forever else timeout, None


def _seconds_in(frame: TextFrame, name: str) -> float | None:
    """The value of a local that refers to None or a number, as py-spy prints it."""
    if name not in frame.values:
        raise UnreadableMemory(f"there is no local variable {name}")
    text = frame.values[name]
    if text == "None":
        return None
    if NUMBER.fullmatch(text):
        return float(text)
    raise UnreadableMemory(f"{name} is not a number")
