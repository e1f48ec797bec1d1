"""Worlds of a few processes that wait for each other in the kernel, and which of their threads can still move.

The truth is computed by brute force. A thread that moves by itself may do anything with what its process has. So a wait
may end if a thread may move in a process that has the other end, that holds the lock, or that is the awaited child.
Everything else can never move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

Wire = Literal["pipe", "unix", "tcp", "backlog"]
"""A ``backlog`` is that of a TCP socket at side 1, which listens and has no room for another connection."""
How = Literal["driver", "outside", "fork", "multiprocessing", "popen", "cat", "sleep"]
"""How a process is started; ``cat`` and ``sleep`` are programs, and one that is ``outside`` belongs to no job."""
Does = Literal[
    # Waits for the other end of a wire
    "receive",
    "send",
    "poll",
    "select",
    "epoll",
    # Waits for another process
    "flock",
    "waitpid",
    "Popen.wait",
    "join",
    # Waits for an object that a family of forks has
    "queue.get",
    "queue.put",
    "process lock",
    # Waits for another thread of the process
    "join thread",
    "event",
    "hold lock",
    "inherited lock",
    # Waits for what is outside of the world
    "accept",
    "signal",
    "watch file",
    # Moves, or a person does
    "terminal",
    "sleep",
    "timer",
    "connect",
    "compute",
    "work",
    "feed",
    "drain",
]
"""What a thread does in the end.

``hold lock`` has taken a lock before its process forks, and waits for an event; ``inherited lock`` waits for that lock
in the fork. ``work`` computes for a moment and writes a byte to a file, again and again. ``feed`` and ``drain`` sleep,
and then write to an end or read from it. ``timer`` waits for a timer of the kernel, ``terminal`` for a
person, and ``connect`` to a full backlog until it fails.
"""
MOVES = {"terminal", "sleep", "timer", "connect", "compute", "work", "feed", "drain"}
OUTSIDE = {"accept", "signal", "watch file"}
ON_WIRES = {"receive", "send", "poll", "select", "epoll"}
IN_PROCESS = {"join thread", "event", "hold lock", "inherited lock"}
OF_CHILDREN = {"waitpid", "Popen.wait", "join"}
OF_FAMILY = {"queue.get", "queue.put", "process lock"}
LONG_S, SHORT_S = 600.0, 0.2
"""Timeouts: one that does not end while a world is watched, and one of a loop that only polls."""

End = tuple[int, int]
"""A wire by its number, and the side of it. A pipe is written at side 1."""


@dataclass
class Channel:
    """A wire, the processes that have each side of it, and from which sides it is full."""

    kind: Wire
    holders: tuple[set[int], set[int]]
    full_from: set[int] = field(default_factory=set)


@dataclass
class Action:
    """What one thread does; ``other`` is the process, lock or thread that it waits for.

    It is 0 for an inherited RLock, 1 for a Lock.
    """

    does: Does
    ends: tuple[End, ...] = ()
    other: int = -1
    timeout_s: float | None = None
    every_s: float = 0.3


@dataclass
class Process:
    """A process with its threads, the first of which is the main one; ``parent`` is None for a driver.

    ``shares`` says that it shares the objects of its family with the driver from which it was forked.
    """

    how: How
    parent: int | None = None
    threads: list[Action] = field(default_factory=list)
    shares: bool = False


@dataclass
class World:
    """``lock_holders`` are the processes that hold each file lock: the one that took it, and forks that have it too."""

    seed: int
    processes: list[Process] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    lock_holders: list[list[int]] = field(default_factory=list)

    def threads(self) -> Iterator[tuple[int, int]]:
        """All threads: the number of the process, and that of the thread in it."""
        return ((p, t) for p, one in enumerate(self.processes) for t in range(len(one.threads)))

    def action(self, thread: tuple[int, int]) -> Action:
        return self.processes[thread[0]].threads[thread[1]]

    def drivers(self) -> list[int]:
        return [number for number, one in enumerate(self.processes) if one.how == "driver"]

    def children(self, process: int) -> list[int]:
        return [number for number, one in enumerate(self.processes) if one.parent == process]

    def driver_of(self, process: int) -> int:
        while (parent := self.processes[process].parent) is not None:
            process = parent
        return process

    def family(self, driver: int) -> set[int]:
        """The processes that share objects of multiprocessing with a driver."""
        found = {n for n, one in enumerate(self.processes) if one.shares and self.driver_of(n) == driver}
        return {driver, *found}

    def uses_family(self, driver: int) -> bool:
        """Whether a process waits for an object that it shares with this driver."""
        return any(one.does in OF_FAMILY for number in self.family(driver) for one in self.processes[number].threads)

    # Truth

    def is_active(self) -> bool:
        """Whether a thread of the job moves, or will by a timer."""
        return any(self._moves(one) for one in self.threads() if self.processes[one[0]].how != "outside")

    def may_move(self, *, with_outside: bool = True) -> set[tuple[int, int]]:
        """The threads that may move at some time; ``with_outside`` counts what anything outside of it may end."""
        moving = {thread for thread in self.threads() if self._moves(thread)}
        if with_outside:
            moving |= {thread for thread in self.threads() if self.action(thread).does in OUTSIDE}
        while new := {one for one in set(self.threads()) - moving if not moving.isdisjoint(self.enders(one))}:
            moving |= new
        return moving

    def stuck(self) -> set[tuple[int, int]]:
        """The threads that can never move."""
        return set(self.threads()) - self.may_move()

    def with_moving(self, process: int) -> World:
        """The same world, in which all threads of one process move."""
        one = self.processes[process]
        moving = replace(one, threads=[Action("sleep") for _ in one.threads])
        return replace(self, processes=[*self.processes[:process], moving, *self.processes[process + 1 :]])

    def _moves(self, thread: tuple[int, int]) -> bool:
        action = self.action(thread)
        return action.does in MOVES or action.timeout_s == LONG_S

    def enders(self, thread: tuple[int, int]) -> set[tuple[int, int]]:
        """The threads any of which may end the wait of a thread, if it moves."""
        return set(self._threads_of(self._enders(thread), besides=thread))

    def _enders(self, thread: tuple[int, int]) -> Collection[int]:
        """The processes that may end a wait."""
        action, process = self.action(thread), thread[0]
        if action.does in ON_WIRES:
            return {holder for wire, side in action.ends for holder in self.channels[wire].holders[1 - side]}
        if action.does == "flock":
            return self.lock_holders[action.other]
        if action.does in OF_CHILDREN:
            return {action.other}
        if action.does in OF_FAMILY:
            return self.family(self.driver_of(process))
        is_rlock = action.does == "inherited lock" and action.other == 0  # only its owner can release it
        return {process} if action.does in IN_PROCESS and not is_rlock else ()

    def _threads_of(self, processes: Collection[int], besides: tuple[int, int]) -> Iterator[tuple[int, int]]:
        action = self.action(besides)
        for process in processes:
            for thread in range(len(self.processes[process].threads)):
                is_awaited = action.does != "join thread" or thread == action.other
                if is_awaited and (process, thread) != besides:
                    yield process, thread

    def __str__(self) -> str:
        lines = [f"world {self.seed}"]
        for number, one in enumerate(self.processes):
            of = "" if one.parent is None else f" of {one.parent}"
            lines.append(f"  {number} {one.how}{of}{' (shares)' * one.shares}:")
            lines += [f"    {action}" for action in one.threads]
        lines += [f"  wire {number}: {one}" for number, one in enumerate(self.channels)]
        lines += [f"  lock {number}: held by {one}" for number, one in enumerate(self.lock_holders)]
        lines.append(f"  can move: {sorted(self.may_move())}; stuck: {sorted(self.stuck())}")
        return "\n".join(lines)
