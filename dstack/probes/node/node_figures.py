"""The figures of one node and its processes, sample after sample: CPU, memory, disks and GPUs.

The CPU use of processes and of the host is that between the readings of a snapshot, from counters of the kernel.
Nothing waits for it: the first sample spans its own duration, later samples all the time since the first. Disks and
GPUs may hang, so they are read late. The raylet's command line names the file systems (seen on Ray 2.46 and 2.60).

GPUs are read through NVIDIA's management library (NVML), which belongs to the driver. Each call is checked, and a
figure without an answer is left out. The layouts are those of ``nvml.h``, as bytes: a class of ctypes could not travel
to other nodes.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import psutil

from dstack.observed.node import Disk, DiskUse, Gpu, HostFigures
from dstack.observed.processes import GpuUse
from dstack.probes.node.procfs import proc

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
MAX_GPUS, MAX_PROCESSES, MAX_NAME = 64, 1_024, 96
MEMORY = "@QQQ"
"""nvmlMemory_t: total, free, used."""
UTILISATION = "@II"
"""nvmlUtilization_t: the time in percent in which a kernel ran, and in which memory was read or written."""
PROCESS = "@I4xQ"
"""The beginning of each version of nvmlProcessInfo_t: the pid and the used memory."""
SIZES = (16, 24, 32)
"""The sizes of nvmlProcessInfo_t. They do not follow from the name of the function: drivers 530 to 535 differ."""
PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses",
)
MAX_VALUE = 2**53
"""Larger values are none; NVML_VALUE_NOT_AVAILABLE is ``2**64 - 1``."""
UNWRITTEN = 0xA5


@dataclass
class GpuReading:
    """The GPUs of a node, the use of each process by its pid, and whether NVML listed the processes of all GPUs."""

    gpus: list[Gpu] = field(default_factory=list)
    uses: dict[int, list[GpuUse]] = field(default_factory=dict)
    has_all_processes: bool = True


class Nvml:
    """The library, loaded and initialised with the first reading."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._name = library
        self._library: ctypes.CDLL | None = None
        self._is_absent = False

    def read(self) -> GpuReading | None:
        """All GPUs; None without the library or a driver."""
        if not self._is_absent and self._library is None:
            self._load()
        if self._library is None:
            return None
        count = ctypes.c_uint(0)
        if not self._call(("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"), ctypes.byref(count)):
            return None
        reading = GpuReading()
        for index in range(min(count.value, MAX_GPUS)):
            self._read_gpu(index, reading)
        return reading

    def _load(self) -> None:
        self._is_absent = True
        try:
            self._library = ctypes.CDLL(self._name)
        except OSError:
            return
        if self._call(("nvmlInit_v2", "nvmlInit")):
            self._is_absent = False
        else:
            self._library = None

    def _read_gpu(self, index: int, reading: GpuReading) -> None:
        device = ctypes.c_void_p()
        names = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"
        if not self._call(names, ctypes.c_uint(index), ctypes.byref(device)):
            reading.has_all_processes = False
            return
        total, _, used = self._values("nvmlDeviceGetMemoryInfo", device, MEMORY) or (None, None, None)
        utilisation = self._values("nvmlDeviceGetUtilizationRates", device, UTILISATION)
        gpu = Gpu(
            index=index,
            name=self._name_of(device),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilisation_percent=utilisation[0] if utilisation and utilisation[0] <= 100 else None,
        )
        reading.gpus.append(gpu)
        processes = self._processes(device)
        reading.has_all_processes &= processes is not None
        for pid, memory in processes or ():
            use = GpuUse(index=index, memory_bytes=memory if memory <= MAX_VALUE else None)
            reading.uses.setdefault(pid, []).append(use)

    def _name_of(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(MAX_NAME)
        if not self._call(("nvmlDeviceGetName",), device, text, ctypes.c_uint(MAX_NAME)):
            return ""
        return text.value.decode("utf-8", "replace")

    def _values(self, function: str, device: ctypes.c_void_p, layout: str) -> tuple[int, ...]:
        """The values of a struct; none if the driver or the GPU has no such figures."""
        buffer = ctypes.create_string_buffer(struct.calcsize(layout))
        values = struct.unpack(layout, buffer.raw) if self._call((function,), device, buffer) else ()
        return values if max(values, default=0) <= MAX_VALUE else ()

    def _processes(self, device: ctypes.c_void_p) -> list[tuple[int, int]] | None:
        """The pid and the used memory of each process on a GPU; None if NVML does not list them."""
        blank = bytes([UNWRITTEN]) * (MAX_PROCESSES * SIZES[-1])
        buffer, count = ctypes.create_string_buffer(blank, len(blank)), ctypes.c_uint(MAX_PROCESSES)
        if not self._call(PROCESSES, device, ctypes.byref(count), buffer):
            return None
        if count.value == 0:
            return []
        written = len(buffer.raw.rstrip(blank[:1]))
        size = next((size for size in SIZES if written <= count.value * size), 0)
        if count.value > MAX_PROCESSES or size == 0:
            return None
        return list(_unpacked(buffer.raw[: count.value * size], size))

    def _call(self, names: tuple[str, ...], *arguments: object) -> bool:
        """Call the first of these functions that the library has; whether it succeeded."""
        found = (getattr(self._library, name, None) for name in names)
        function = next((one for one in found if one is not None), None)
        return function is not None and function(*arguments) == SUCCESS


def _unpacked(data: bytes, size: int) -> Iterator[tuple[int, int]]:
    for at in range(0, len(data), size):
        pid, used = struct.unpack_from(PROCESS, data, at)
        yield pid, used


T = TypeVar("T")


class LateReading(Generic[T]):
    """One reading at a time. While a reading hangs, no other one begins, and there is no result."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._results: list[T | None] = []
        self._is_overdue = False

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
        self._thread = threading.Thread(target=run, name="dstack", daemon=True)
        self._thread.start()

    def result(self, within_s: float) -> T | None:
        """The result of the reading; None if it failed or takes longer. A reading that hangs is awaited only once."""
        if self._thread is None:
            return None
        self._thread.join(0.0 if self._is_overdue else max(0.0, within_s))
        self._is_overdue = self._thread.is_alive()
        return None if self._is_overdue or not self._results else self._results[0]


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
OF_GPU = "/dev/nvidia"
"""The devices that every process with a CUDA context has mapped."""


class NodeFigures:
    """Reads the counters of a sample's processes when they are identified, and again for the answer."""

    def __init__(self, nvml: str = LIBRARY) -> None:
        self._cpu = CpuMeter()
        self._nvml = Nvml(nvml)
        self._late_gpus: LateReading[GpuReading] = LateReading()
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
        self._late_gpus.begin(self._nvml.read)

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
            oom_kills=next((proc.oom_kills(pid) for pid in sorted(self._raylets) if proc.name(pid) == RAYLET), None),
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
        return uses if proc.has_mapped(pid, OF_GPU) else ()
