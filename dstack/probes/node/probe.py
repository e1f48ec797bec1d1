"""Looks at the worker and driver processes of the node it runs on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psutil

from dstack.probes.node.cpython.layout import Layout, calibrate
from dstack.probes.node.process_sampler import Look
from dstack.probes.node.procfs.children import Families
from dstack.probes.node.procfs.permissions import INSTALL_PYSPY, DumpFailed
from dstack.probes.node.procfs.worker_pid import NotThisWorker, PortOwners, port_owners
from dstack.probes.node.pyspy.runner import PySpy, SudoRefused, find_pyspy
from dstack.probes.node.stacks.table import Origins, StackTable

POOL_SIZE = 2
MAX_CHILDREN, MAX_CHILDREN_HERE = 16, 64
"""So many child processes of one process, and of all on this node, are looked at."""
CHILDREN_SHARE = 0.5
"""The part of the time in which children are looked at, so that those who keep one waiting cost nobody else."""

Plain = dict[str, Any]


class NodeProbe:
    """Samples processes of this node; holds nothing between samples but its py-spy.

    ``is_guest`` says that it runs in a worker of the cluster, which it then leaves out.
    """

    def __init__(self, *, is_guest: bool = False) -> None:
        self._own_pid = os.getpid() if is_guest else None
        path = find_pyspy()
        self._pyspy = PySpy(path) if path else None
        self._sudo_refuses = False
        self._calibrating = threading.Lock()
        self._layout: Layout | None = None

    def has_pyspy(self) -> bool:
        """Whether this node has a py-spy of its own."""
        return self._pyspy is not None

    def equip(self, binary: bytes) -> None:
        """Gives a node without py-spy the bytes of one."""
        self._pyspy = PySpy.from_bytes(binary)

    def sample(self, targets: list[Plain], options: Plain) -> Plain:
        """What the target processes do.

        Each target has ``worker_id``, ``pid``, ``port`` and ``is_driver``; options are ``native``, ``locals``,
        ``nonblocking`` and ``children`` (booleans), ``deadline_s`` and ``thread_context`` (see
        :mod:`dstack.probes.node.ray.thread_tasks`). A target that runs another Python than this probe has ``python``
        (see :mod:`dstack.probes.foreign_pythons`) and a ``thread_context`` of its own. Returns ``frames``, ``stacks``,
        ``sources``, ``processes`` (by worker id), ``failures``, ``host``, and ``clock``: the times here when it began
        and ended.
        """
        began_at = time.time()
        deadline = time.monotonic() + options["deadline_s"]
        targets = [target for target in targets if target["pid"] != self._own_pid]
        origins = Origins()
        table = StackTable(origins)
        owners = port_owners()
        families = Families([target["pid"] for target in targets])
        looks = [Look(target, options, origins, self.layout, families) for target in targets]
        identified = _identified(looks, owners)
        children: list[Look] = []
        if options.get("children"):  # of a stranger with a worker's pid they are strangers, too
            children = _identified(_find_children(identified), {})
        until = time.monotonic() + CHILDREN_SHARE * options["deadline_s"]
        result: Plain = {"processes": {}, "failures": [], "host": _host_figures()}
        pool = ThreadPoolExecutor(POOL_SIZE)
        try:
            done = [pool.submit(self._look, look, deadline) for look in identified]
            done += [pool.submit(self._look, child, until) for child in children]
            for future in done:
                future.result()
            for look in looks:
                self._record(look, table, result)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody who interrupts waits for the rest
        result.update(frames=table.frames, stacks=table.stacks, sources=table.sources)
        return {**result, "clock": (began_at, time.time())}

    def _look(self, look: Look, deadline: float) -> None:
        with _failures_of(look):
            self._read_stacks(look, self._tool(), deadline)

    def _read_stacks(self, look: Look, tool: PySpy, deadline: float) -> None:
        """Reads them as whoever dstack is, and where that is refused, as root, if no password is asked for that."""
        try:
            look.read_stacks(tool, deadline)
        except DumpFailed as error:
            as_root = tool.through_sudo()
            if not error.is_refused or as_root is None or self._sudo_refuses:
                raise
            try:
                look.read_stacks(as_root, deadline)
            except SudoRefused:
                self._sudo_refuses = True
                raise error from None

    def layout(self) -> Layout:
        """Where this interpreter keeps what, found out when first needed. Raises :class:`Unreadable`."""
        with self._calibrating:
            if self._layout is None:
                self._layout = calibrate()
        return self._layout

    def _tool(self) -> PySpy:
        if self._pyspy is None:
            raise DumpFailed("there is no py-spy on this node", INSTALL_PYSPY, cause="missing")
        return self._pyspy

    @staticmethod
    def _record(look: Look, table: StackTable, result: Plain) -> None:
        result["failures"] += look.failures
        result["failures"] += [one for child in look.children for one in child.failures if one["stage"] == "stacks"]
        if look.figures:
            result["processes"][look.target["worker_id"]] = look.as_process(table)


@contextmanager
def _failures_of(look: Look) -> Iterator[None]:
    """Records why it could not be gone on with, and after how long."""
    look.began = time.monotonic()
    try:
        yield
    except psutil.NoSuchProcess:
        look.ends()
    except NotThisWorker as error:
        look.fail("process", str(error), cause=error.cause)
        return
    except DumpFailed as error:
        refused = look.interpreter.refused
        look.fail("stacks", f"{refused} ({error.reason})" if refused else error.reason, error.remedy, error.cause)
    if look.failures and not psutil.pid_exists(look.pid):  # whatever failed did so for that
        look.ends()


def _identified(looks: list[Look], owners: PortOwners) -> list[Look]:
    """Those whose process is there, and is the one it is said to be."""
    for look in looks:
        with _failures_of(look):
            look.identify(owners)
    return [look for look in looks if look.figures]


def _find_children(looks: list[Look]) -> list[Look]:
    """The first of each process's children, and then of all, which are to be looked at."""
    left = MAX_CHILDREN_HERE
    for look in looks:
        look.find_children(min(MAX_CHILDREN, left))
        left -= len(look.children)
    return [child for look in looks for child in look.children]


def _host_figures() -> Plain:
    memory = psutil.virtual_memory()
    return {
        "cpu_count": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
    }
