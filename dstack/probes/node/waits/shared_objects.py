"""The objects that a call waits on, where another thread or coroutine that reaches one of them may end the wait.

Seen on CPython 3.10 to 3.14 and Ray 2.46 to 2.60.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dstack.call_sites import kind_of
from dstack.libraries.train.sites import HELPERS
from dstack.observed.calls import Call, ProcessObject
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.threads import ASYNCIO, is_in
from dstack.probes.node.threads import Frame as AnyFrame
from dstack.probes.node.waits.known_sites import IN_CALLERS, poll_of, site_in
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


def of_thread(call: Call, frames: Sequence[Frame], objects: Objects, is_user: Callable[[AnyFrame], bool]) -> WaitsOn:
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


def of_coroutine(call: Call | None, frames: Sequence[Frame], objects: Objects) -> WaitsOn:
    """The objects that the call of a coroutine waits on: locks, conditions, events, semaphores and queues."""
    is_of_asyncio = bool(frames) and frames[0].file.endswith(ASYNCIO_FILES)
    if call is None or not isinstance(call.need, ProcessObject) or not is_of_asyncio:
        return NOTHING
    inside = itertools.takewhile(lambda frame: ASYNCIO in frame.file, frames)
    found = [frame.local("self") for frame in inside if frame.file.endswith(ASYNCIO_FILES)]
    owners = tuple(dict.fromkeys(one for one in found if one))
    return WaitsOn(owners, (owners[0], frames[0].function)) if owners else NOTHING


def _shares_self(frame: Frame) -> bool:
    """Whether the frame is a method whose object is awaited; at a meeting of processes no object is."""
    site = site_in(frame, IN_CALLERS)
    return site is not None and not site.is_meeting


def _helpers(inside: Sequence[Frame], objects: Objects) -> Iterator[int]:
    """The Thread objects that the frames wait for."""
    for frame in inside:
        for file, function, attribute in HELPERS:
            if is_in(frame, file, function):
                with contextlib.suppress(Unreadable):
                    yield objects.attribute(frame.local("self"), attribute)
