"""Runs the processes of a world until each thread is in its last call, and ends them all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dstack.probes.node.procfs import proc
from tests.kernel_worlds.player import Plan, command
from tests.kernel_worlds.world import MOVES, Action, Channel, Wire, World
from tests.processes import die_with_parent, last_output, wait_until

DEADLINE_S = 60.0
SMALL = 4096
SETTLED_S = 0.05
LOWEST = 200
"""The lowest descriptor that is passed to processes."""
AWAKE = MOVES | {"watch file"}
"""What a thread does that wakes now and then."""


@dataclass
class Stage:
    """A world whose threads are all in their last calls: the pid of each process, and the id of each thread."""

    world: World
    pids: dict[int, int] = field(default_factory=dict)
    tids: dict[tuple[int, int], int] = field(default_factory=dict)


@contextlib.contextmanager
def staged(world: World, folder: Path) -> Iterator[Stage]:
    """The running world; at the end, all of its processes are killed, and its files are closed."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        yield _Staging(world, folder, stack).run()


class _Staging:
    def __init__(self, world: World, folder: Path, stack: contextlib.ExitStack) -> None:
        self._world = world
        self._folder = folder
        self._stack = stack
        self._passed: list[int] = []
        self._wires = [self._connect(channel) for channel in world.channels]
        self._terminals = {
            thread: self._terminal() for thread in world.threads() if world.action(thread).does == "terminal"
        }
        self._reports, report = os.pipe()
        go, self._goes = os.pipe()
        self._report, self._go = self._pass(report), self._pass(go)
        self._stack.callback(os.close, self._reports)
        os.set_blocking(self._reports, False)
        self._started: list[subprocess.Popen[bytes]] = []
        self._read = b""

    def run(self) -> Stage:
        early = {lock for lock, holders in enumerate(self._world.lock_holders) if len(holders) > 1}
        for number, process in enumerate(self._world.processes):
            if process.parent is None:
                self._start(self._plan(number, early))
        for fd in self._passed:
            os.close(fd)
        stage = Stage(self._world)
        expected = set(range(len(self._world.processes)))
        self._await(lambda: {n for fact in self._facts("held") for n in fact["held"]} >= expected, "start")
        os.close(self._goes)
        self._await(lambda: self._is_complete(stage), "ready")
        self._await(lambda: self._is_settled(stage), "settle")
        return stage

    def _start(self, plan: Plan) -> None:
        with (self._folder / f"{plan['number']}.log").open("wb") as log:
            process = subprocess.Popen(
                command(plan),
                pass_fds=(*plan["needs"], self._report, self._go),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._started.append(process)
        self._stack.callback(_end, process)

    # Plans

    def _plan(self, number: int, early: set[int]) -> Plan:
        """The plan of a process: it gets what it and its children need, and closes what only these have."""
        world, process = self._world, self._world.processes[number]
        children = [self._plan(child, early) for child in world.children(number)]
        kept = {
            fd for wire, channel in zip(self._wires, world.channels, strict=True) for fd in _own(number, wire, channel)
        }
        kept |= {fd for (owner, _), fd in self._terminals.items() if owner == number}
        held = [lock for lock, holders in enumerate(world.lock_holders) if holders[0] == number]
        inherited = [lock for lock, holders in enumerate(world.lock_holders) if number in holders[1:]]
        return {
            "number": number,
            "how": process.how,
            "go": self._go,
            "report": self._report,
            "needs": sorted(kept.union(*(child["needs"] for child in children))),
            "close": sorted({*self._passed} - kept - {self._go, self._report}),
            "locks": [self._path(lock) for lock in held if lock not in early],
            "early_locks": [self._path(lock) for lock in held if lock in early],
            "keeps": [self._path(lock) for lock in (*held, *inherited)],
            "has_family": process.parent is None and world.uses_family(number),
            "threads": [self._action((number, thread), one) for thread, one in enumerate(process.threads)],
            "children": children,
        }

    def _action(self, thread: tuple[int, int], action: Action) -> Plan:
        is_writer = {end: self._writes(action, *end) for end in action.ends}
        return {
            "does": action.does,
            "reads": [self._wires[wire][side] for (wire, side), writes in is_writer.items() if not writes],
            "writes": [self._wires[wire][side] for (wire, side), writes in is_writer.items() if writes],
            "other": action.other,
            "timeout_s": action.timeout_s,
            "every_s": action.every_s,
            "terminal": self._terminals.get(thread),
            "path": self._path(action.other)
            if action.does == "flock"
            else str(self._folder / f"{thread}.{action.does}"),
        }

    def _writes(self, action: Action, wire: int, side: int) -> bool:
        """Whether a thread writes to an end, or waits for room there."""
        is_full = side in self._world.channels[wire].full_from
        return action.does == "feed" or (is_full and action.does not in ("receive", "drain"))

    def _path(self, lock: int) -> str:
        return str(self._folder / f"lock {lock}")

    # Descriptors

    def _pass(self, fd: int) -> int:
        """The descriptor under a number that no process uses by itself."""
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST)
        os.close(fd)
        self._passed.append(high)
        return high

    def _terminal(self) -> int:
        ours, theirs = os.openpty()
        self._stack.callback(os.close, ours)
        return self._pass(theirs)

    def _connect(self, channel: Channel) -> tuple[int, int]:
        ends = CONNECT[channel.kind]()
        for side in channel.full_from:
            _fill(ends[side], channel.kind)
        return self._pass(ends[0]), self._pass(ends[1])

    # Readiness

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, deadline_s=DEADLINE_S, what=lambda: f"{what}: {self}", pause_s=0.01)

    def _facts(self, name: str) -> list[Plan]:
        """The facts of this name that the processes have reported."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reports, 1 << 16):
                self._read += data
        assert all(proc.exit_code(process.pid) is None for process in self._started), str(self)
        facts = map(json.loads, self._read.split(b"\n")[:-1])
        return [fact for fact in facts if name in fact]

    def _is_complete(self, stage: Stage) -> bool:
        for fact in self._facts("tids"):
            number = fact["number"]
            stage.pids[number] = fact["pid"]
            stage.tids.update({(number, int(thread)): tid for thread, tid in fact["tids"].items()})
            for program, pid in fact["programs"].items():
                stage.pids[int(program)] = stage.tids[int(program), 0] = pid
        return stage.tids.keys() >= set(self._world.threads())

    def _is_settled(self, stage: Stage) -> bool:
        """Whether all threads that wait are asleep, and stay so for a moment."""
        waiting = [one for one in self._world.threads() if self._world.action(one).does not in AWAKE]
        marks = [_mark(stage, thread) for thread in waiting if self._world.action(thread).timeout_s is None]
        time.sleep(SETTLED_S)
        return None not in marks and marks == [
            _mark(stage, thread) for thread in waiting if self._world.action(thread).timeout_s is None
        ]

    def __str__(self) -> str:
        logs = [last_output(path) for path in sorted(self._folder.glob("*.log"))]
        return "\n".join((str(self._world), self._read.decode(), *logs))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver with all of its process group; it has not been reaped, so its pid is not reused."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _mark(stage: Stage, thread: tuple[int, int]) -> str | None:
    pid, tid = stage.pids[thread[0]], stage.tids[thread]
    if proc.thread_state(pid, tid) != "S":
        return None
    return proc.scheduler_mark(pid, tid)


def _own(number: int, wire: tuple[int, int], channel: Channel) -> list[int]:
    return [wire[side] for side in (0, 1) if number in channel.holders[side]]


def _unix() -> tuple[int, int]:
    left, right = socket.socketpair()
    for one in (left, right):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    return left.detach(), right.detach()


def _tcp() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        left = socket.socket()
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            left.setsockopt(socket.SOL_SOCKET, name, SMALL)
        left.connect(server.getsockname())
        right, _ = server.accept()
        right.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    return left.detach(), right.detach()


def _backlog() -> tuple[int, int]:
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    client = socket.create_connection(server.getsockname())
    return client.detach(), server.detach()


CONNECT: dict[Wire, Callable[[], tuple[int, int]]] = {"pipe": os.pipe, "unix": _unix, "tcp": _tcp, "backlog": _backlog}


def _fill(fd: int, kind: Wire) -> None:
    """Fill a wire until nothing more fits; TCP moves bytes between its queues for a moment."""
    os.set_blocking(fd, False)
    for pause_s in (0.0, 0.0, 0.0) if kind != "tcp" else (0.05, 0.05, 0.1, 0.0):
        with contextlib.suppress(BlockingIOError):
            while os.write(fd, bytes(SMALL)):
                pass
        with contextlib.suppress(BlockingIOError):
            while os.write(fd, b"x"):
                pass
        time.sleep(pause_s)
    os.set_blocking(fd, True)
