"""The processes that workers and drivers have started themselves, as multiprocessing does.

Left out are Ray's own processes below a driver that has started a cluster, and those of dstack.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.procfs import proc

RAY_PROGRAMS = ("raylet", "gcs_server")
RAY_SCRIPT = re.compile(r"/ray/(?:dashboard|autoscaler|_private|util/client)/|^ray\.util\.client\.server$")
"""Ray's processes of a cluster other than workers, by their command lines; seen on Ray 2.46 and 2.60."""
OWN = re.compile(r"^dstack(?:\.|$)|/dstack$|run_(?:module|child)\('dstack\.")
HELPERS = re.compile(r"^from multiprocessing\.(?:resource_tracker|forkserver) import ")
"""multiprocessing's resource tracker and fork server; the processes that the latter forks are the application's."""
PYTHON = re.compile(r"python[\d.]*[td]*")
FIRST_WORDS = 4
INIT = 1
"""The parent of processes whose own parent has ended."""
RAY_THREAD = "worker.io"
"""The thread through which a process connected to Ray sends and receives everything; seen on Ray 2.46 and 2.60."""


class Families:
    """The parents and children of this host's processes, as of the first use.

    The ``known`` processes, and this one, do not count as children.
    """

    def __init__(self, known: Collection[int] = ()) -> None:
        self._known = {*known, os.getpid()}

    @cached_property
    def started(self) -> dict[int, list[int]]:
        """The children of every process of this host."""
        return proc.children()

    @cached_property
    def _adopted(self) -> dict[int, list[int]]:
        """The orphans that a known process has started, as a daemon: they are in its process group, or its forks."""
        births = {figures.birth.stack_start: pid for pid in self._known if (figures := proc.figures(pid))}
        births.pop(0, None)  # without permission, the kernel shows this address of no process
        found: dict[int, list[int]] = {}
        for pid in self.started.get(INIT, ()):
            figures = proc.figures(pid)
            group = figures.group if figures and figures.group in self._known else None
            parent = group or (births.get(figures.birth.stack_start) if figures else None)
            if parent is not None and pid not in self._known:
                found.setdefault(parent, []).append(pid)
        return found

    def below(self, pid: int) -> dict[int, int]:
        """All descendants of a worker or driver: the parent of each by pid, nearest first."""
        found: dict[int, int] = {}
        ahead = [pid]
        for parent in ahead:
            for child in (*self.started.get(parent, ()), *self._adopted.get(parent, ())):
                if child not in found and child not in self._known and not _is_others(child):
                    found[child] = parent
                    ahead.append(child)
        return found

    def with_all_below(self, pids: Collection[int]) -> set[int]:
        """These processes, and all below them."""
        return {*pids, *(below for pid in pids for below in self.below(pid))}


def is_python(pid: int) -> bool:
    """Whether a process runs Python."""
    program = os.path.basename(proc.program(pid))
    return PYTHON.fullmatch(program) is not None or bool(proc.has_mapped(pid, "/libpython3"))


def is_helper(pid: int, parent: int) -> bool:
    """Whether it is a helper of multiprocessing; a process that the helper forks has the same command line."""
    words = proc.arguments(pid, FIRST_WORDS)
    return any(map(HELPERS.match, words)) and words != proc.arguments(parent, FIRST_WORDS)


def is_fork(child: proc.Birth, parent: proc.Birth) -> bool:
    """Whether a process was forked from another: it keeps the address of that stack until it runs another program."""
    return child.stack_start != 0 and child.stack_start == parent.stack_start


def is_cut_off(child: tuple[int, proc.Birth], worker: tuple[int, proc.Birth]) -> bool:
    """Whether a child, by its pid and birth, was forked from a worker or driver and lacks the connection to Ray.

    A fork has none of its parent's other threads, and Ray starts them again only where the child connects to Ray.
    """
    (pid, birth), (worker_pid, of_worker) = child, worker
    return (
        is_fork(birth, of_worker)
        and RAY_THREAD in proc.thread_names(worker_pid)
        and RAY_THREAD not in proc.thread_names(pid)
    )


def is_of_dstack(pid: int) -> bool:
    """Whether a process runs dstack."""
    return any(map(OWN.search, proc.arguments(pid, FIRST_WORDS)))


def _is_others(pid: int) -> bool:
    """Whether a process belongs to Ray's cluster, or to dstack."""
    words = proc.arguments(pid, FIRST_WORDS)
    return proc.name(pid) in RAY_PROGRAMS or any(map(RAY_SCRIPT.search, words)) or is_of_dstack(pid)
