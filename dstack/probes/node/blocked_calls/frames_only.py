"""The call that a thread is blocked in, from its frames alone, where memory cannot be read.

A thread certainly waits if its leaf is Ray's blocking function, but its refs are unknown. Ray reports the refs that the
process holds, and the thread waits for some of these. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from dstack.probes.node.blocked_calls.blocked_call import RAY_WAIT_FOR_EVER, is_next_of_generator, ray_call
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.threads import PythonThread, ShownFrame
from dstack.probes.node.waits.known_waits import CHANNEL
from dstack.probes.node.wire import CallData, Dependencies

Terms = Callable[[Sequence[ShownFrame], str], Dependencies]
"""From frames and the kind of their call: ``timeout_s``, and its assumption. Raises :class:`Unreadable`."""

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


def shallow_call(frames: Sequence[ShownFrame], terms_of: Terms) -> CallData | None:
    """The call, whose refs are among the ``held``; None where it is not known to be a wait for refs."""
    kind = ray_call(frames[0]) if frames else None
    if kind is None:
        return None
    if len(frames) > 1 and f"/{frames[1].position.file}".endswith(CHANNEL):
        return {"kind": "other", "frame": 1, "what": "read of a compiled graph's channel"}
    if any(is_next_of_generator(frame) for frame in frames):
        return {"kind": kind, "frame": 0, "unread": "the generator was not read"}
    try:
        return {"kind": kind, "frame": 0, "held": True, **terms_of(frames, kind)}
    except Unreadable as error:
        return {"kind": kind, "frame": 0, "unread": str(error)}


def shallow_calls(threads: Iterable[PythonThread[ShownFrame]]) -> dict[int, CallData]:
    """The calls of threads that py-spy has dumped, by OS id."""
    calls = {thread.os_thread_id: shallow_call(thread.frames, _timeout_in_locals) for thread in threads}
    return {thread: call for thread, call in calls.items() if thread and call}


def _timeout_in_locals(frames: Sequence[ShownFrame], kind: str) -> Dependencies:
    """The timeout among the arguments that py-spy shows; see :mod:`dstack.probes.node.blocked_calls.blocked_call`."""
    timeout = _seconds_in(frames[0], "timeout")
    forever = -1 if kind == "ray.get" else RAY_WAIT_FOR_EVER
    return {"timeout_s": None if timeout == forever else timeout}


def _seconds_in(frame: ShownFrame, name: str) -> float | None:
    """The value of a local that refers to None or a number, as py-spy prints it."""
    if name not in frame.values:
        raise Unreadable(f"there is no local variable {name}")
    text = frame.values[name]
    if text == "None":
        return None
    if NUMBER.fullmatch(text):
        return float(text)
    raise Unreadable(f"{name} is not a number")
