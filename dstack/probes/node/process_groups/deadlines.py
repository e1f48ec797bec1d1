"""When a blocked call will end with an error, by the timeouts that the kernel shows.

A wait for a futex until a point in time has that in the thread's own stack. A collective of gloo waits without one, for
a thread of gloo which runs the collective and has the timeout. Seen with torch 2.13 and gloo, on Linux x86-64.
"""

from __future__ import annotations

import contextlib
import time

from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable
from dstack.probes.node.procfs.proc import SystemCall, system_call, thread_name, threads

FUTEX_WAIT_UNTIL, FUTEX_CLOCK_REALTIME = 9, 256
FUTEX_FLAGS = 128 | FUTEX_CLOCK_REALTIME
"""The operation of a futex call that waits until a point in time, FUTEX_WAIT_BITSET of Linux, and its flags."""
LONGEST_S = 366 * 86_400.0
GLOO_THREAD = "pt_gloo_runloop"
"""The threads that run the collectives of gloo, two for each group; an idle one waits without a timeout."""


def deadline_of(memory: ProcessMemory, call: SystemCall) -> float | None:
    """The Unix time at which a wait for a futex ends; None where it has none."""
    if call.futex_deadline is None or call.arguments[1] & ~FUTEX_FLAGS != FUTEX_WAIT_UNTIL:
        return None
    with contextlib.suppress(Unreadable):
        seconds, nanoseconds = memory.unpack("<qq", call.futex_deadline)
        is_unix_time = call.arguments[1] & FUTEX_CLOCK_REALTIME
        deadline = float(seconds + nanoseconds / 1e9 + (0 if is_unix_time else time.time() - time.monotonic()))
        if 0 <= nanoseconds < 10**9 and 0 < deadline - time.time() < LONGEST_S:
            return deadline
    return None


def gloo_deadlines(memory: ProcessMemory) -> list[float]:
    """The ends of the collectives of gloo that are in progress in a process."""
    own = (thread for thread in threads(memory.pid) if thread_name(memory.pid, thread) == GLOO_THREAD)
    calls = (system_call(memory.pid, thread) for thread in own)
    ends = (deadline_of(memory, call) for call in calls if call)
    return [end for end in ends if end is not None]
