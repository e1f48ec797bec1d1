"""Collectives that gloo has in progress, by its own threads, and when they will end with an error.

Each group has two threads, which run its collectives. They are started in the order in which the groups are made. One
that runs a collective sleeps on a futex until the timeout of the group; an idle one has no timeout. The thread of the
program, which waits for them, has none either, but in a send or receive. Seen with torch 2.13 on Linux x86-64.
"""

from __future__ import annotations

import contextlib
import time

from dstack.libraries.torch.groups import TorchGroups
from dstack.observed.calls import ProcessGroup
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable
from dstack.probes.node.procfs.proc import SystemCall, system_call, thread_name, thread_started, threads

FUTEX_WAIT_UNTIL, FUTEX_CLOCK_REALTIME = 9, 256
FUTEX_FLAGS = 128 | FUTEX_CLOCK_REALTIME
"""The operation of a futex call that waits until a point in time, FUTEX_WAIT_BITSET of Linux, and its flags."""
LONGEST_S = 366 * 86_400.0
GLOO_THREAD, AUTOGRAD_THREAD = "pt_gloo_runloop", "pt_autograd_"
"""The names of gloo's threads, and how those of a backward pass on GPUs begin."""
THREADS_OF_GROUP = 2
"""Torch's default for gloo."""


class Gloo:
    """The collectives of gloo in one process; nothing is raised."""

    def __init__(self, memory: ProcessMemory, groups: TorchGroups) -> None:
        self._memory = memory
        self._groups = groups

    @property
    def ends_at(self) -> float | None:
        """When the only collective in progress ends with an error; None if there are several, or none."""
        return next(iter(self._in_progress.values())) if len(self._in_progress) == 1 else None

    @property
    def is_in_backward(self) -> bool:
        """Whether a thread that sleeps in a backward pass waits for a collective: one is in progress, and no GPU."""
        return bool(self._in_progress) and not any(one.startswith(AUTOGRAD_THREAD) for one in self._names.values())

    @cached_property
    def group(self) -> ProcessGroup | None:
        """The group of all collectives in progress; None if they belong to several, or it is unknown."""
        busy = {at // THREADS_OF_GROUP for at in self._in_progress}
        groups = self._groups.with_gloo
        is_known = len(busy) == 1 and len(groups) * THREADS_OF_GROUP == len(self._threads)
        return groups[busy.pop()] if is_known else None

    @cached_property
    def _threads(self) -> list[int]:
        """Gloo's threads in the order of their start."""
        pid = self._memory.pid
        own = [thread for thread, name in self._names.items() if name == GLOO_THREAD]
        return sorted(own, key=lambda thread: (thread_started(pid, thread), thread))

    @cached_property
    def _names(self) -> dict[int, str]:
        return {thread: thread_name(self._memory.pid, thread) for thread in threads(self._memory.pid)}

    @cached_property
    def _in_progress(self) -> dict[int, float]:
        """The Unix time at which each collective in progress ends with an error, by its place among the threads."""
        calls = [system_call(self._memory.pid, thread) for thread in self._threads]
        ends = [deadline_of(self._memory, call) if call else None for call in calls]
        return {at: end for at, end in enumerate(ends) if end is not None}


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
