"""The figures of one node and its processes, sample after sample: CPU, memory, disks and GPUs.

The CPU use of processes and of the host is that between the readings of a snapshot, from counters of the kernel.
Nothing waits for it: the first sample spans its own duration, later samples all the time since the first. Disks and
GPUs may hang, so they are read late. The raylet's command line names the file systems (seen on Ray 2.46 and 2.60).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import psutil

from dstack.observed.node import Disk, DiskUse, HostFigures, Xid
from dstack.observed.processes import CudaUse, GpuUse
from dstack.probes.node.gpus import CUDA_LIBRARY, DEVICES, KERNEL_LOG, LIBRARY, GpuReading, Nvml, XidLog, has_driver
from dstack.probes.node.procfs import proc

T = TypeVar("T")


class LateReading(Generic[T]):
    """One reading at a time. While a reading hangs, no other one begins, and there is no result."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._results: list[T | None] = []
        self._is_overdue = False
        self._began_s = 0.0

    def begin(self, read: Callable[[], T | None]) -> None:
        """Begin a reading, unless the previous one still runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._is_overdue, results = False, []

        def run() -> None:
            try:
                results.append(read())
            except Exception:
                results.append(None)

        self._results = results
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=run, name="dstack", daemon=True)
        self._thread.start()

    def result(self, within_s: float) -> T | None:
        """The result of the reading; None if it failed or takes longer. A reading that hangs is awaited only once."""
        if self._thread is None:
            return None
        self._thread.join(0.0 if self._is_overdue else max(0.0, within_s))
        self._is_overdue = self._thread.is_alive()
        return None if self._is_overdue or not self._results else self._results[0]

    @property
    def overdue_s(self) -> float | None:
        """For how long a reading lasts whose result did not come in time."""
        return time.monotonic() - self._began_s if self._is_overdue else None


MIN_OVER_S = 0.01
"""Over a shorter time, one scheduling slice decides the figure."""
MAX_PERCENT = 1e6
MIN_TICKS = 50
"""The host's counters have whole ticks: with fewer of them, of all CPUs, a figure is off by more than 2 %."""


@dataclass(frozen=True)
class CpuUse:
    """A share of one CPU in percent, and the seconds over which it was measured."""

    percent: float
    over_s: float


class CpuMeter:
    """Keeps the first reading of each process and of the host, and compares it with later ones."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[proc.Birth, float, float]] = {}
        self._host: tuple[int, int] | None = None

    def begin(self) -> None:
        """Read the host's counters for the first time."""
        self._host = self._host or proc.cpu_ticks()

    def note(self, pid: int, birth: proc.Birth) -> None:
        """Read the counter of a process for the first time."""
        known = self._first.get(pid)
        if known is None or known[0] != birth:
            cpu_s = proc.cpu_clock(pid)
            if cpu_s is not None:
                self._first[pid] = birth, time.monotonic(), cpu_s

    def use(self, pid: int, birth: proc.Birth) -> CpuUse | None:
        """The use of a process since it was noted; None if it has ended, or was noted too short a time ago."""
        first, now_s, cpu_s = self._first.get(pid), time.monotonic(), proc.cpu_clock(pid)
        if first is None or first[0] != birth or cpu_s is None:
            return None
        over_s = now_s - first[1]
        if over_s < MIN_OVER_S:
            return None
        percent = 100 * max(0.0, cpu_s - first[2]) / over_s
        return CpuUse(round(min(percent, MAX_PERCENT), 1), round(over_s, 3))

    def host_percent(self) -> float | None:
        """The share of all CPUs of the host that was in use since the beginning; None over too short a time."""
        ticks = proc.cpu_ticks()
        if self._host is None or ticks is None or ticks[1] - self._host[1] < MIN_TICKS:
            return None
        busy = (ticks[0] - self._host[0]) / (ticks[1] - self._host[1])
        return round(100 * min(1.0, max(0.0, busy)), 1)


RAYLET = "raylet"
SOCKET, SPILLING, STORE = "--raylet_socket_name=", "--fallback_directory=", "--plasma_directory="
MAX_DISKS = 16
"""So many directories are reported; a host may have raylets of several clusters."""
MAX_PATH = 1_024
MAX_BYTES = 2**62


def disks(parents: Iterable[int]) -> list[Disk]:
    """The disks of the raylets among these parents of workers, each directory once."""
    found: dict[tuple[DiskUse, str], Disk] = {}
    for pid in sorted(set(parents)):
        if proc.name(pid) == RAYLET:
            for use, path in _directories(proc.ray_options(pid)):
                if (use, path) not in found and len(found) < MAX_DISKS and (disk := _disk(use, path)):
                    found[use, path] = disk
    return list(found.values())


def _directories(options: Iterable[str]) -> Iterator[tuple[DiskUse, str]]:
    for option in options:
        if option.startswith(SOCKET):  # SESSION/sockets/raylet
            yield "session", os.path.dirname(os.path.dirname(option[len(SOCKET) :]))
        elif option.startswith(SPILLING):
            yield "spilled objects", option[len(SPILLING) :]
        elif option.startswith(STORE):
            yield "object store", option[len(STORE) :]


def _disk(use: DiskUse, path: str) -> Disk | None:
    if not os.path.isabs(path) or len(path) > MAX_PATH:
        return None
    try:
        usage = psutil.disk_usage(path)
    except OSError:
        return None
    if not 0 <= usage.free <= usage.total <= MAX_BYTES:
        return None
    return Disk(use=use, path=path, total_bytes=usage.total, free_bytes=usage.free)


WAIT_S = 0.5
"""How long an answer waits for disks and GPUs that are still being read: only for a slow driver or file system."""


class NodeFigures:
    """Reads the counters of a sample's processes when they are identified, and again for the answer."""

    def __init__(self, nvml: str = LIBRARY, kernel_log: str = KERNEL_LOG) -> None:
        self._cpu, self._polled = CpuMeter(), CpuMeter()
        self._nvml = Nvml(nvml)
        self._xids = XidLog(kernel_log)
        self._has_driver = False
        self._uses_cuda: dict[int, bool | None] = {}
        self._late_gpus: LateReading[GpuReading] = LateReading()
        self._late_xids: LateReading[tuple[Xid, ...]] = LateReading()
        self._late_disks: LateReading[list[Disk]] = LateReading()
        self._raylets: set[int] = set()
        self._gpus: GpuReading | None = None

    def begin_snapshot(self) -> None:
        """Measure the use of CPUs from the next sample on."""
        self._cpu = CpuMeter()
        self._raylets.clear()

    def begin(self) -> None:
        """Begin a sample."""
        self._cpu.begin()
        self._uses_cuda.clear()
        self._has_driver = has_driver()
        self._late_gpus.begin(self._nvml.read)
        if self._has_driver:
            self._late_xids.begin(self._xids.read)

    def note(self, pid: int, figures: proc.ProcessFigures) -> None:
        """Read the counters of a process for the first time."""
        self._cpu.note(pid, figures.birth)
        self._raylets.add(figures.parent_pid)

    def begin_disks(self) -> None:
        """Read the disks, once the processes are known."""
        parents = frozenset(self._raylets)
        self._late_disks.begin(lambda: disks(parents))

    def end(self, deadline: float) -> HostFigures:
        """The figures of the host; those of its processes can be read after this."""
        until = min(deadline, time.monotonic() + WAIT_S)
        self._gpus = self._late_gpus.result(until - time.monotonic())
        memory = psutil.virtual_memory()
        return HostFigures(
            cpu_count=os.cpu_count(),
            load_1m=round(os.getloadavg()[0], 2),
            memory_total_bytes=memory.total,
            memory_available_bytes=memory.available,
            cpu_percent=self._cpu.host_percent(),
            disks=tuple(self._late_disks.result(until - time.monotonic()) or ()),
            gpus=None if self._gpus is None else tuple(self._gpus.gpus),
            nvml_silent_s=None if (late_s := self._late_gpus.overdue_s) is None else round(late_s, 2),
            xids=self._late_xids.result(until - time.monotonic()) or (),
            oom_kills=next((proc.oom_kills(pid) for pid in sorted(self._raylets) if proc.name(pid) == RAYLET), None),
        )

    def between_polls(self, within_s: float) -> HostFigures:
        """The figures of the host but its disks; its use of CPUs is that since the last call, None at the first one."""
        self._late_gpus.begin(self._nvml.read)
        percent, self._polled = self._polled.host_percent(), CpuMeter()
        self._polled.begin()
        memory = psutil.virtual_memory()
        gpus = self._late_gpus.result(min(WAIT_S, within_s))
        return HostFigures(
            cpu_count=os.cpu_count(),
            memory_total_bytes=memory.total,
            memory_available_bytes=memory.available,
            cpu_percent=percent,
            gpus=None if gpus is None else tuple(gpus.gpus),
        )

    def cpu(self, pid: int, birth: proc.Birth) -> CpuUse | None:
        """The CPU use of a process since it was read for the first time."""
        return self._cpu.use(pid, birth)

    def gpus(self, pid: int) -> tuple[GpuUse, ...] | None:
        """The GPUs that a process uses; None if that is unknown.

        NVML lists pids of the host, or of the caller's PID namespace with newer drivers. Outside of the host's own
        namespace a pid counts only if its process has mapped a GPU, and such a process without an entry is unknown.
        """
        if self._gpus is None:
            return None
        found = self._gpus.uses.get(pid)
        uses = None if found is None else tuple(found)
        if proc.is_in_first_pid_namespace():
            return uses if uses or not self._gpus.has_all_processes else ()
        return () if self._has_mapped_gpu(pid) is False else uses

    def cuda(self, pid: int) -> CudaUse | None:
        """Whether a process has a CUDA context; None if unknown, or without NVIDIA's driver."""
        if not self._has_driver:
            return None
        if self.gpus(pid):
            return "listed"
        if self._has_mapped_gpu(pid):
            return "mapped"
        return "none" if proc.has_mapped(pid, CUDA_LIBRARY) is False else None

    def _has_mapped_gpu(self, pid: int) -> bool | None:
        if pid not in self._uses_cuda:
            self._uses_cuda[pid] = proc.has_mapped(pid, DEVICES)
        return self._uses_cuda[pid]
