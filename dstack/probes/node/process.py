"""One target process: its identity, its children, its reading, and what failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from dstack.observed.processes import EndedChild
from dstack.probes.node.blocked_calls.blocked_call import Surroundings
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.kernel_waits import KernelTables
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import Families, is_fork, is_helper
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.procfs.worker_pid import NotThisWorker, PortOwners, require_worker
from dstack.probes.node.reading import Problem, ProcessReading, Request
from dstack.probes.node.wire import Options, Target


class TargetProcess:
    """A worker, a driver, or with a ``parent`` a process that one of these has started."""

    def __init__(
        self,
        target: Target,
        families: Families,
        tables: KernelTables,
        parent: TargetProcess | None = None,
        parent_pid: int | None = None,
    ) -> None:
        self.target = target
        self.pid = target["pid"]
        self.worker_id = target["worker_id"]
        self.parent = parent
        self.parent_pid = parent_pid
        self.title = ""
        self.figures: proc.Figures | None = None
        self.reading = ProcessReading()
        self.children: list[TargetProcess] = []
        self.ended_children: list[EndedChild] = []
        self.children_left_out = 0
        self.problems: list[Problem] = []
        self.elapsed_s = 0.0
        self._families = families
        self._tables = tables

    @cached_property
    def below(self) -> dict[int, int]:
        """The parent, by pid, of each of its descendants."""
        return self._families.below(self.pid)

    def identify(self, owners: PortOwners, verified: dict[int, tuple[proc.Birth, int]]) -> None:
        """Find its figures, and validate that the pid is this worker's.

        ``verified`` has births and ports by pid that were validated before. Raises :class:`NotThisWorker`, or
        ``psutil.NoSuchProcess`` where the process has ended.
        """
        figures = proc.figures(self.pid)
        identity = (figures.birth, self.target["port"]) if figures else None
        if identity is None or verified.get(self.pid) != identity:
            require_worker(self.pid, self.target["port"], owners)
        if figures is None or identity is None:
            raise psutil.NoSuchProcess(self.pid)
        verified[self.pid] = identity
        self.title = proc.title(self.pid)
        self.figures = figures

    def find_children(self, limit: int) -> list[TargetProcess]:
        """Find the processes below this one; returns the first ``limit`` of them, which are to be read."""
        found = []
        for pid, parent in self.below.items():
            if (exit_code := proc.exit_code(pid)) is not None:
                name = proc.name(pid)
                is_own = name != proc.name(parent)  # a fork has the name of its parent
                ended = EndedChild(
                    pid=pid, parent_pid=parent, name=name if is_own else "", exit_code=exit_code, is_zombie=True
                )
                self.ended_children.append(ended)
            elif not is_helper(pid, parent):
                found.append(pid)
        self.children_left_out = max(0, len(found) - limit)
        known = {self.pid: self}
        for pid in found[:limit]:
            target: Target = {"worker_id": self.worker_id, "pid": pid, "port": 0, "is_driver": True}
            parent_pid = self.below[pid]
            known[pid] = TargetProcess(target, self._families, self._tables, known.get(parent_pid), parent_pid)
            self.children.append(known[pid])
        if len(found) > limit:
            reason = f"it has too many child processes: {len(found) - limit} of {len(found)} were not read"
            self.problems.append(Problem("stacks", reason, "truncated"))
        return self.children

    def request(self, options: Options, deadline: float) -> Request:
        """The request to read it until ``deadline``, a ``time.monotonic()``."""
        return Request(
            pid=self.pid,
            title=self.title,
            is_driver=self.target["is_driver"],
            is_child=self.parent_pid is not None,
            around=Surroundings(lambda: self.below, self._tables, self._threads_of_parent()),
            thread_context=self.target.get("thread_context", options["thread_context"]),
            options=options,
            deadline=deadline,
        )

    def _threads_of_parent(self) -> dict[int, int] | None:
        """The threads of the process that it was forked from, by their Python ids; None for any other process."""
        parent = self.parent
        if parent is None or parent.figures is None or self.figures is None:
            return None
        if not is_fork(self.figures.birth, parent.figures.birth):
            return None
        threads = (one.thread for one in parent.reading.threads)
        return {thread.thread_id: thread.os_thread_id for thread in threads}

    @property
    def is_gone(self) -> bool:
        """Whether the process ended while it was read, or before."""
        return any((problem.stage, problem.cause) == ("process", "ended") for problem in self.problems)

    def has_ended(self) -> None:
        """Record that the process has gone, which is why everything else failed."""
        self.problems = [Problem("process", "the process has ended", "ended")]

    @contextmanager
    def problems_of(self) -> Iterator[None]:
        """Record why its reading failed, and after how long."""
        began = time.monotonic()
        try:
            yield
        except psutil.NoSuchProcess:
            self.has_ended()
        except NotThisWorker as error:
            self.problems.append(Problem("process", str(error), error.cause))
            return
        except DumpFailed as error:
            self.problems.append(Problem("stacks", error.reason, error.cause, error.remedy))
        finally:
            self.elapsed_s = round(time.monotonic() - began, 2)
        if self.problems and not psutil.pid_exists(self.pid):  # the reason of whatever failed
            self.has_ended()
