"""Plays one process of a world, with its children, from a plan in JSON; imports the standard library only.

A process starts its children, closes what only these have, takes its locks, and says so. Once all processes of the
world have done that, it starts its threads and reports their ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Plan = dict[str, Any]
PR_SET_PDEATHSIG = 1
FORKS = multiprocessing.get_context("fork")


class Family:
    """What forks share: an empty queue, a full one, and a lock that the driver holds."""

    def __init__(self) -> None:
        self.empty, self.full, self.lock = FORKS.SimpleQueue(), FORKS.Queue(1), FORKS.Lock()
        self.full.put(0)
        self.lock.acquire()


class Player:
    """One process."""

    def __init__(self, plan: Plan, before: Player | None = None) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self.plan = plan
        self.family: Family | None = Family() if plan["has_family"] else None
        if before:
            self.family = before.family
        self.early: dict[str, int] = dict(before.early) if before else {}
        self.inherited = before.held if before else ()
        self.held: Sequence[Any] = (threading.RLock(), threading.Lock())
        self.children: dict[int, Any] = {}
        self.programs: dict[int, int] = {}
        self.tids: dict[int, int] = {}
        self.started: dict[int, threading.Thread] = {}
        self.open: list[Any] = []

    def play(self) -> None:
        plan = self.plan
        for path in plan["early_locks"]:
            self.early[path] = lock(path)
        self.start([n for n, one in enumerate(plan["threads"]) if one["does"] == "hold lock"])
        for child in plan["children"]:
            self.start_child(child)
        for fd in (*plan["close"], *(fd for path, fd in self.early.items() if path not in plan["keeps"])):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.open += [lock(path) for path in plan["locks"]]
        self.report({"held": [plan["number"], *self.programs]})
        os.read(plan["go"], 1)
        self.start([n for n in range(1, len(plan["threads"])) if n not in self.tids])
        self.tids[0] = threading.get_native_id()
        self.report({"number": plan["number"], "pid": os.getpid(), "tids": self.tids, "programs": self.programs})
        os.close(plan["report"])
        os.close(plan["go"])
        self.act(plan["threads"][0])

    def report(self, fact: Plan) -> None:
        os.write(self.plan["report"], json.dumps(fact).encode() + b"\n")

    def start(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.started[number] = threading.Thread(target=self.run, args=(number,), daemon=True)
            self.started[number].start()
        while not self.tids.keys() >= set(numbers):
            time.sleep(0.001)

    def run(self, number: int) -> None:
        action = self.plan["threads"][number]
        if action["does"] == "hold lock":
            for one in self.held:
                one.acquire()
        self.tids[number] = threading.get_native_id()
        self.act(action)

    # Children

    def start_child(self, plan: Plan) -> None:
        number, how = plan["number"], plan["how"]
        plan["go"], plan["report"] = self.plan["go"], self.plan["report"]
        if how == "fork":
            pid = os.fork()
            if pid == 0:
                play_and_exit(Player(plan, self))
            self.children[number] = pid
        elif how == "multiprocessing":
            self.children[number] = FORKS.Process(target=lambda: Player(plan, self).play())
            self.children[number].start()
        elif how == "popen":
            kept = (*plan["needs"], plan["go"], plan["report"])
            self.children[number] = subprocess.Popen(command(plan), pass_fds=kept)
        else:
            self.start_program(number, plan)

    def start_program(self, number: int, plan: Plan) -> None:
        stdin = plan["threads"][0]["reads"][0] if how_reads(plan) else subprocess.DEVNULL
        program = ["cat"] if plan["how"] == "cat" else ["sleep", "600"]
        extra = [fd for fd in plan["needs"] if fd != stdin]
        process = subprocess.Popen(program, stdin=stdin, stdout=subprocess.DEVNULL, pass_fds=extra)
        self.children[number] = process
        self.programs[number] = process.pid

    # Actions

    def act(self, action: Plan) -> None:
        does: Callable[[Plan], None] = getattr(self, action["does"].replace(" ", "_").replace(".", "_").lower())
        while True:
            does(action)

    def receive(self, action: Plan) -> None:
        for fd in action["reads"]:
            stream = stream_of(fd)
            data = stream.recv(4096) if stream else os.read(fd, 4096)
            if not data:
                time.sleep(0.2)

    def send(self, action: Plan) -> None:
        for fd in action["writes"]:
            stream = stream_of(fd)
            stream.sendall(bytes(1 << 16)) if stream else os.write(fd, bytes(1 << 16))

    def poll(self, action: Plan) -> None:
        poll = select.poll()
        for fd in action["reads"]:
            poll.register(fd, select.POLLIN)
        for fd in action["writes"]:
            poll.register(fd, select.POLLOUT)
        timeout_s = action["timeout_s"]
        self.take(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def epoll(self, action: Plan) -> None:
        with select.epoll() as epoll:
            for fd in action["reads"]:
                epoll.register(fd, select.EPOLLIN)
            for fd in action["writes"]:
                epoll.register(fd, select.EPOLLOUT)
            self.take(epoll.poll(action["timeout_s"]))

    def select(self, action: Plan) -> None:
        reads, writes, _ = select.select(action["reads"], action["writes"], [], action["timeout_s"])
        self.take([*((fd, select.POLLIN) for fd in reads), *((fd, select.POLLOUT) for fd in writes)])

    def take(self, ready: Sequence[tuple[int, int]]) -> None:
        for fd, event in ready:
            os.read(fd, 4096) if event & select.POLLIN else os.write(fd, b"x")

    def flock(self, action: Plan) -> None:
        os.close(lock(action["path"]))

    def waitpid(self, action: Plan) -> None:
        os.waitpid(self.children[action["other"]], 0)
        time.sleep(600)

    def popen_wait(self, action: Plan) -> None:
        self.children[action["other"]].wait()
        time.sleep(600)

    def join(self, action: Plan) -> None:
        self.children[action["other"]].join()
        time.sleep(600)

    def queue_get(self, action: Plan) -> None:
        assert self.family is not None
        self.family.empty.get()

    def queue_put(self, action: Plan) -> None:
        assert self.family is not None
        self.family.full.put(0)

    def process_lock(self, action: Plan) -> None:
        assert self.family is not None
        with self.family.lock:
            pass

    def join_thread(self, action: Plan) -> None:
        self.started[action["other"]].join()

    def event(self, action: Plan) -> None:
        threading.Event().wait()

    hold_lock = event

    def inherited_lock(self, action: Plan) -> None:
        self.inherited[action["other"]].acquire()

    def accept(self, action: Plan) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()

    def signal(self, action: Plan) -> None:
        signal.sigwait({signal.SIGUSR1})

    def terminal(self, action: Plan) -> None:
        os.read(action["terminal"], 100)

    def watch_file(self, action: Plan) -> None:
        while not os.path.exists(action["path"]):
            time.sleep(action["every_s"])

    def sleep(self, action: Plan) -> None:
        time.sleep(600)

    def timer(self, action: Plan) -> None:
        libc = ctypes.CDLL(None)
        timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
        libc.timerfd_settime(timer, 0, struct.pack("=qqqq", 0, 0, 600, 0), None)
        os.read(timer, 8)

    def connect(self, action: Plan) -> None:
        with socket.socket(fileno=os.dup(action["reads"][0])) as first, socket.socket() as second:
            second.connect(first.getpeername())

    def compute(self, action: Plan) -> None:
        sum(range(10_000))

    def work(self, action: Plan) -> None:
        sum(range(10_000))
        with open(action["path"], "a") as file:
            file.write("x")
        time.sleep(action["every_s"])

    def feed(self, action: Plan) -> None:
        time.sleep(action["every_s"])
        os.write(action["writes"][0], b"x")

    def drain(self, action: Plan) -> None:
        time.sleep(action["every_s"])
        os.read(action["reads"][0], 4096)


def lock(path: str) -> int:
    """An open file with an exclusive ``flock``."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def stream_of(fd: int) -> socket.socket | None:
    """A socket object for a descriptor, which stays open; None for a pipe."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return None
    if fd not in STREAMS:
        STREAMS[fd] = socket.socket(fileno=fd)
    return STREAMS[fd]


STREAMS: dict[int, socket.socket] = {}


def how_reads(plan: Plan) -> bool:
    return plan["how"] == "cat"


def command(plan: Plan) -> list[str]:
    """The command that plays a process."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(plan)]


def play_and_exit(player: Player) -> None:
    try:
        player.play()
    finally:
        os._exit(1)


if __name__ == "__main__":
    Player(json.loads(sys.argv[1])).play()
