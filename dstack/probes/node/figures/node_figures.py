"""The figures of one node and its processes, sample after sample."""

from __future__ import annotations

import os
import time

import psutil

from dstack.probes.node.figures.cpu import CpuMeter, CpuUse
from dstack.probes.node.figures.disks import disks
from dstack.probes.node.figures.late_reading import LateReading
from dstack.probes.node.figures.nvml import LIBRARY, GpuReading, Nvml
from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import DiskData, GpuUseData, HostData

WAIT_S = 0.5
"""How long an answer waits for disks and GPUs that are still being read: only for a slow driver or file system."""
OF_GPU = "/dev/nvidia"
"""The devices that every process with a CUDA context has mapped."""


class NodeFigures:
    """Reads the counters of a sample's processes when they are identified, and again for the answer."""

    def __init__(self, nvml: str = LIBRARY) -> None:
        self._cpu = CpuMeter()
        self._nvml = Nvml(nvml)
        self._late_gpus: LateReading[GpuReading] = LateReading()
        self._late_disks: LateReading[list[DiskData]] = LateReading()
        self._raylets: set[int] = set()
        self._gpus: GpuReading | None = None

    def begin_snapshot(self) -> None:
        """Measure the use of CPUs from the next sample on."""
        self._cpu = CpuMeter()

    def begin(self) -> None:
        """Begin a sample."""
        self._raylets.clear()
        self._cpu.begin()
        self._late_gpus.begin(self._nvml.read)

    def note(self, pid: int, figures: proc.Figures) -> None:
        """Read the counters of a process for the first time."""
        self._cpu.note(pid, figures.birth)
        self._raylets.add(figures.parent_pid)

    def begin_disks(self) -> None:
        """Read the disks, once the processes are known."""
        parents = frozenset(self._raylets)
        self._late_disks.begin(lambda: disks(parents))

    def end(self, deadline: float) -> HostData:
        """The figures of the host; those of its processes can be read after this."""
        until = min(deadline, time.monotonic() + WAIT_S)
        self._gpus = self._late_gpus.result(until - time.monotonic())
        host = _host(self._cpu.host_percent())
        host["disks"] = self._late_disks.result(until - time.monotonic()) or []
        if self._gpus is not None:
            host["gpus"] = self._gpus.gpus
        return host

    def cpu(self, pid: int, birth: proc.Birth) -> CpuUse | None:
        """The CPU use of a process since it was read for the first time."""
        return self._cpu.use(pid, birth)

    def gpus(self, pid: int) -> list[GpuUseData] | None:
        """The GPUs that a process uses; None if that is unknown.

        NVML lists pids of the host, or of the caller's PID namespace with newer drivers. Outside of the host's own
        namespace a pid counts only if its process has mapped a GPU, and such a process without an entry is unknown.
        """
        if self._gpus is None:
            return None
        uses = self._gpus.uses.get(pid)
        if proc.is_in_first_pid_namespace():
            return uses if uses or not self._gpus.has_all_processes else []
        return uses if proc.has_mapped(pid, OF_GPU) else []


def _host(cpu_percent: float | None) -> HostData:
    memory = psutil.virtual_memory()
    return {
        "cpu_count": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "cpu_percent": cpu_percent,
    }
