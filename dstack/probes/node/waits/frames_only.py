"""What a thread is blocked in by its frames alone, where the process's memory cannot be read.

That it waits is certain where Ray's own blocking function is the leaf; for what, is not told. Ray does say which refs
the process holds: it waits for some of these. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.pyspy.parser import RawThread
from dstack.probes.node.waits.blocked_call import RAY_WAIT_FOR_EVER, RAY_WORKER_FILE, is_next_of_generator, seconds_in
from dstack.probes.node.waits.known_waits import CHANNEL, RawFrame, function_of

Call = dict[str, Any]
Terms = Callable[[list[RawFrame], str], Call]
"""From frames and the kind of their call: ``timeout_s``, and what that rests on. Raises :class:`Unreadable`."""

KINDS = {"get_objects": "ray.get", "wait": "ray.wait"}


def shallow_call(frames: list[RawFrame], terms_of: Terms) -> Call | None:
    """The call, whose refs are among the ``held``; None where it is not known to be a wait for refs."""
    kind = KINDS.get(function_of(frames[0])) if frames else None
    if kind is None or not str(frames[0]["filename"]).endswith(RAY_WORKER_FILE):
        return None
    call: Call = {"kind": kind, "frame": 0}
    if len(frames) > 1 and f"/{frames[1]['filename']}".endswith(CHANNEL):
        return {"kind": "other", "frame": 1, "what": "read of a compiled graph's channel"}
    if any(is_next_of_generator(frame) for frame in frames):
        return {**call, "unread": "which generator it is was not read"}
    try:
        return {**call, "held": True, **terms_of(frames, kind)}
    except Unreadable as error:
        return {**call, "unread": str(error)}


def shallow_calls(threads: Iterable[RawThread]) -> dict[int, Call]:
    """The calls of threads that py-spy has dumped, by their OS ids."""
    calls = {thread["os_thread_id"]: shallow_call(thread["frames"], _timeout_in_locals) for thread in threads}
    return {thread: call for thread, call in calls.items() if thread is not None and call}


def _timeout_in_locals(frames: list[RawFrame], kind: str) -> Call:
    """What py-spy shows of the function's own arguments; see :mod:`dstack.probes.node.waits.blocked_call`."""
    timeout = seconds_in(frames[0], "timeout")
    forever = -1 if kind == "ray.get" else RAY_WAIT_FOR_EVER
    return {"timeout_s": None if timeout == forever else timeout}
