"""The processes of one run, found by a variable that all of them inherit, and their end, also if dstack is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Container
from random import Random
from typing import TYPE_CHECKING

import psutil

from dstack.probes.connection.own_cluster import IDLE_TITLE, worker_title
from dstack.processes.child import Child, outlive_parent

if TYPE_CHECKING:
    from dstack.processes.child import Parent

VARIABLE = "DSTACK_EXPLORED_RUN"
"""In the environment of each process of a run; its value is the folder of the run, which no other run has."""
END_S = 10.0
PAUSE_S, SCANS = 0.05, 2
PULSE_S = (0.05, 0.4)
"""How long all workers run between two stops, at least and at most."""
KILLED_WITHIN_S = (0.1, 4.0)
"""When a worker is killed, after the first one has begun to run something."""


def members(directory: str) -> list[psutil.Process]:
    """The processes of the run with that folder."""
    return [process for process in psutil.process_iter() if _is_member(process, directory)]


def _is_member(process: psutil.Process, directory: str, sessions: Container[int | None] = ()) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.environ().get(VARIABLE) == directory or _session(process.pid) in sessions
    except (psutil.Error, OSError):  # it has ended, or belongs to another user
        return False


def end(directory: str) -> None:
    """Kill every process of a run, those that begin meanwhile as well, and remove its folder.

    A process that is about to execute another program has no variables for a moment, but it has its session: each run
    begins in a new one. So all of the sessions that members were in are killed, until nothing is found twice.
    """
    deadline = time.monotonic() + END_S
    sessions: set[int] = set()
    unseen = 0
    while unseen < SCANS and time.monotonic() < deadline:
        found = [process for process in psutil.process_iter() if _is_member(process, directory, sessions)]
        sessions.update(session for process in found if (session := _session(process.pid)) is not None)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=PAUSE_S)
        unseen = 0 if found else unseen + 1
        time.sleep(0 if found else PAUSE_S)
    shutil.rmtree(directory, ignore_errors=True)


def _session(pid: int) -> int | None:
    """The session of a process; None if it has ended, or is in dstack's own."""
    with contextlib.suppress(OSError):
        session = os.getsid(pid)
        return session if session != os.getsid(0) else None
    return None


class Reaper:
    """A process that ends the runs that are still there when dstack itself has ended, even if it was killed."""

    def __init__(self) -> None:
        self._child = Child(__name__, start_new_session=True)

    def watch(self, directory: str) -> None:
        """Call it before the run begins."""
        self._child.send("watch", directory)

    def release(self, directory: str) -> None:
        """Call it after :func:`end`."""
        self._child.send("release", directory)

    def close(self) -> None:
        """End the process; call it when no run is left."""
        self._child.close()


def main(parent: Parent) -> None:
    """Serve a :class:`Reaper`; end what is left when its process sends no more."""
    outlive_parent()
    watched: set[str] = set()
    for kind, directory in parent:
        (watched.add if kind == "watch" else watched.discard)(directory)
    for directory in watched:
        end(directory)


class Disturbance:
    """A thread that stops workers of a run for a moment now and then, or kills some; a context manager.

    Workers are stopped only while nothing holds ``lock``. Those that run something are killed, at times since the first
    of them began which the seed decides, as it does of their place in the order in which they began.
    """

    def __init__(
        self, directory: str, *, stop_ms: int = 0, stop_seed: int = 0, kills: int = 0, kill_seed: int = 0
    ) -> None:
        self.lock = threading.Lock()
        self.killed: list[str] = []
        self._directory = directory
        self._stop_ms = stop_ms
        self._random = Random(stop_seed)
        self._kills = planned_kills(kills, kill_seed)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=target, name="dstack-disturbance", daemon=True)
            for target in (*([self._stop_some] if stop_ms else []), *([self._kill_some] if kills else []))
        ]

    def __enter__(self) -> Disturbance:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _workers(self, *, are_busy: bool) -> list[psutil.Process]:
        """The workers of the run, in the order in which they began."""
        found: list[tuple[float, int, psutil.Process]] = []
        for process in members(self._directory):
            title = worker_title(process)
            if title and not (are_busy and title == IDLE_TITLE):
                with contextlib.suppress(psutil.Error):
                    found.append((process.create_time(), process.pid, process))
        return [process for _, _, process in sorted(found)]

    def _stop_some(self) -> None:
        while not self._over.wait(self._random.uniform(*PULSE_S)):
            if workers := self._workers(are_busy=False):
                self._stop(self._random.choice(workers))

    def _kill_some(self) -> None:
        while not self._workers(are_busy=True) and not self._over.wait(PAUSE_S):
            pass
        began = time.monotonic()
        for at_s, place in self._kills:
            self._over.wait(began + at_s - time.monotonic())
            while not (workers := self._workers(are_busy=True)) and not self._over.wait(PAUSE_S):
                pass
            if self._over.is_set():
                return
            worker = workers[int(place * len(workers))]
            with contextlib.suppress(psutil.Error):
                what = worker_title(worker).removeprefix("ray::")
                worker.kill()
                self.killed.append(what)

    def _stop(self, worker: psutil.Process) -> None:
        with self.lock, contextlib.suppress(psutil.Error):
            worker.suspend()
            try:
                self._over.wait(self._random.uniform(0, self._stop_ms / 1000))
            finally:
                worker.send_signal(signal.SIGCONT)


def planned_kills(count: int, seed: int) -> list[tuple[float, float]]:
    """When workers are killed, in seconds, and which: their places from 0 to below 1 among those that run something."""
    random = Random(seed)
    return sorted((random.uniform(*KILLED_WITHIN_S), random.random()) for _ in range(count))
