"""Recognises the frame a thread is blocked in, and reads from memory what it waits for.

Seen on Ray 2.46 and 2.60 and on CPython 3.10 to 3.13. py-spy gives qualified function names from CPython 3.11 on and
plain ones on 3.10, so only the last part of a name is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dstack.probes.node.memory import ProcessMemory, Unreadable
from dstack.probes.node.pyspy import RawThread

RawFrame = dict[str, Any]
Call = dict[str, Any]
"""A :class:`dstack.model.BlockedCall` as plain data."""

RAY_WAIT_FOR_EVER = 10**6
"""ray.wait replaces timeout=None by this many seconds before it blocks."""

RAY_WORKER_FILE = "ray/_private/worker.py"


def blocked_call(thread: RawThread, threads: list[RawThread], memory: ProcessMemory) -> Call | None:
    """What the thread's innermost frames wait for, or None where they are not a wait dstack knows."""
    frames = thread["frames"]
    if not frames:
        return None
    for reader in (_ray_get, _ray_wait):
        call = _guarded(reader, frames[0], memory)
        if call:
            return call
    return _thread_join(frames, threads)


def function_of(frame: RawFrame) -> str:
    """The plain name of the frame's function."""
    return str(frame["name"]).rpartition(".")[2]


def _guarded(
    reader: Callable[[RawFrame, ProcessMemory], Call | None], frame: RawFrame, memory: ProcessMemory
) -> Call | None:
    try:
        return reader(frame, memory)
    except Unreadable as error:
        kind = "ray.get" if reader is _ray_get else "ray.wait"
        return {"kind": kind, "frame": 0, "unread": str(error)}


def _ray_get(frame: RawFrame, memory: ProcessMemory) -> Call | None:
    """``Worker.get_objects(object_refs, timeout)``: blocked in C++ when it is the leaf; -1 is no timeout."""
    if function_of(frame) != "get_objects" or not _is_ray_worker(frame):
        return None
    refs = [memory.object_ref(item) for item in memory.items(_address(frame, "object_refs"))]
    timeout = _seconds(frame, "timeout")
    return {"kind": "ray.get", "frame": 0, "refs": refs, "timeout_s": None if timeout == -1 else timeout}


def _ray_wait(frame: RawFrame, memory: ProcessMemory) -> Call | None:
    """``wait(ray_waitables, num_returns=, timeout=)``: blocked in C++ when it is the leaf."""
    if function_of(frame) != "wait" or not _is_ray_worker(frame):
        return None
    refs = [memory.object_ref(item) for item in memory.items(_address(frame, "ray_waitables"))]
    timeout = _seconds(frame, "timeout")
    count = _seconds(frame, "num_returns")
    if count is None:
        raise Unreadable("num_returns is not a number")
    forever = timeout == RAY_WAIT_FOR_EVER
    return {
        "kind": "ray.wait",
        "frame": 0,
        "refs": refs,
        "num_returns": int(count),
        "timeout_s": None if forever else timeout,
    }


def _thread_join(frames: list[RawFrame], threads: list[RawThread]) -> Call | None:
    """``Thread.join``: the leaf from 3.13 on, the caller of ``_wait_for_tstate_lock`` before.

    The thread waited for is the one whose bootstrap frame has the same Thread object as ``self``.
    """
    at = 1 if function_of(frames[0]) == "_wait_for_tstate_lock" and len(frames) > 1 else 0
    frame = frames[at]
    if function_of(frame) != "join" or not str(frame["filename"]).endswith("/threading.py"):
        return None
    try:
        joined = _address(frame, "self")
        timeout = _seconds(frame, "timeout")
    except Unreadable as error:
        return {"kind": "thread.join", "frame": at, "unread": str(error)}
    for other in threads:
        if any(function_of(f) == "_bootstrap_inner" and _local(f, "self") == joined for f in other["frames"]):
            return {"kind": "thread.join", "frame": at, "joins": other["os_thread_id"], "timeout_s": timeout}
    return {"kind": "thread.join", "frame": at, "unread": "the thread it joins was not seen"}


def _is_ray_worker(frame: RawFrame) -> bool:
    return str(frame["filename"]).endswith(RAY_WORKER_FILE)


def _local(frame: RawFrame, name: str) -> int | None:
    for local in frame["locals"] or ():
        if local["name"] == name:
            return int(local["addr"])
    return None


def _address(frame: RawFrame, name: str) -> int:
    address = _local(frame, name)
    if address is None:
        raise Unreadable(f"there is no local {name}")
    return address


def _seconds(frame: RawFrame, name: str) -> float | None:
    """The value of a local that holds None or a number, as py-spy prints it."""
    for local in frame["locals"] or ():
        if local["name"] == name:
            text = str(local["repr"])
            if text == "None":
                return None
            if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", text):
                return float(text)
            raise Unreadable(f"{name} is {text[:40]!r}, not a number")
    raise Unreadable(f"there is no local {name}")
