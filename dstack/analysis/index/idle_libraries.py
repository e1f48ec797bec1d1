"""Threads and coroutines of libraries that are assumed to stay idle: they wait for nothing outside their process."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.analysis.index.sample_index import SampleIndex
from dstack.model import Coroutine, Frame, Thread

GRPC_POLLER = "(_poll_wrapper)"
"""Names of the threads in which grpc.aio waits for its own events, in native code, end so (grpcio 1.85)."""


def is_idle_library(index: SampleIndex, worker_id: str, execution: Thread | Coroutine) -> bool:
    """Whether library code was off the CPU in every sample and reading, and waits for nothing outside."""
    frames = index.snapshot.frames_of(execution)
    is_library = bool(frames) and not any(frame.origin == "user" for frame in frames)
    has_run = isinstance(execution, Thread) and (worker_id, execution.os_thread_id) in index.threads_that_ran
    return is_library and not has_run and _waits_inside(execution, frames)


def _waits_inside(execution: Thread | Coroutine, frames: Sequence[Frame]) -> bool:
    """Whether library code is Ray's own, or waits in its process: neither for a socket nor as a timer."""
    if any(frame.origin == "ray" for frame in frames) or execution.name.endswith(GRPC_POLLER):
        return True
    is_stdlib = all(frame.origin == "stdlib" for frame in frames)  # as threading.Timer
    return execution.call is not None and not (is_stdlib and execution.call.timeout_s is not None)
