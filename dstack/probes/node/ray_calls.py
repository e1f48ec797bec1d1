"""The call that a thread is blocked in, from its frames alone, where memory cannot be read.

A thread certainly waits if its leaf is Ray's blocking function, but its refs are unknown. Ray reports the refs that the
process holds, and the thread waits for some of these. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from dstack.call_sites import RAY_GET
from dstack.observed.call_site import Site
from dstack.observed.calls import Call, HeldRefs, ProcessObject
from dstack.observed.calls import Unreadable as UnreadableNeed
from dstack.probes.node.cpython.memory import Unreadable
from dstack.probes.node.thread_calls import RAY_WAIT_FOR_EVER, is_next_of_generator, ray_call
from dstack.probes.node.thread_stacks import IN_CHANNEL, PythonThread, TextFrame, site_in

Terms = Callable[[Sequence[TextFrame], Site], tuple[float | None, str | None]]
"""From frames and the site of their call: its timeout in seconds, and an assumption. Raises :class:`Unreadable`."""

NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


def shallow_call(frames: Sequence[TextFrame], terms_of: Terms) -> Call | None:
    """The call, whose refs are among those that are held; None where it is not known to be a wait for refs."""
    site = ray_call(frames[0]) if frames else None
    if site is None:
        return None
    if len(frames) > 1 and (channel := site_in(frames[1], IN_CHANNEL)):
        return Call(site=channel.id, frame=1, need=ProcessObject())
    if any(is_next_of_generator(frame) for frame in frames):
        return Call(site=site.id, frame=0, need=UnreadableNeed(reason="the generator was not read"))
    try:
        timeout_s, assumed = terms_of(frames, site)
    except Unreadable as error:
        return Call(site=site.id, frame=0, need=UnreadableNeed(reason=str(error)))
    return Call(site=site.id, frame=0, need=HeldRefs(assumed=assumed), timeout_s=timeout_s)


def shallow_calls(threads: Iterable[PythonThread[TextFrame]]) -> dict[int, Call]:
    """The calls of threads that py-spy has dumped, by OS id."""
    calls = {thread.os_thread_id: shallow_call(thread.frames, _timeout_in_locals) for thread in threads}
    return {thread: call for thread, call in calls.items() if thread and call}


def _timeout_in_locals(frames: Sequence[TextFrame], site: Site) -> tuple[float | None, str | None]:
    """The timeout among the arguments that py-spy shows; see :mod:`dstack.probes.node.thread_calls`."""
    timeout = _seconds_in(frames[0], "timeout")
    forever = -1 if site is RAY_GET else RAY_WAIT_FOR_EVER
    return None if timeout == forever else timeout, None


def _seconds_in(frame: TextFrame, name: str) -> float | None:
    """The value of a local that refers to None or a number, as py-spy prints it."""
    if name not in frame.values:
        raise Unreadable(f"there is no local variable {name}")
    text = frame.values[name]
    if text == "None":
        return None
    if NUMBER.fullmatch(text):
        return float(text)
    raise Unreadable(f"{name} is not a number")
