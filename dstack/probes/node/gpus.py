"""The GPUs of one node: what NVIDIA's management library (NVML) says of them, and the errors in the kernel's log.

NVML belongs to the driver. Each call is checked, and a figure without an answer is left out. The layouts are those of
``nvml.h``, as bytes: a class of ctypes could not travel to other nodes. On a broken GPU a call may hang, and the log
still says why, so both are read late, each by itself (:class:`dstack.probes.node.node_figures.LateReading`).
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dstack.observed.node import Gpu, GpuFault, Xid
from dstack.observed.processes import GpuUse

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
MAX_GPUS, MAX_PROCESSES, MAX_NAME = 64, 1_024, 96
MEMORY = "@QQQ"
"""nvmlMemory_t: total, free, used."""
UTILISATION = "@II"
"""nvmlUtilization_t: the time in percent in which a kernel ran, and in which memory was read or written."""
PCI = "@16xIII"
"""The beginning of each version of nvmlPciInfo_t after its first text: domain, bus, device. It has at most 68 bytes."""
SM_CLOCK, OF_GPU, UNCORRECTED, SINCE_LOAD = 1, 0, 1, 0
"""NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED and NVML_VOLATILE_ECC."""
FAULTS: dict[int, GpuFault] = {15: "lost", 16: "needs a reset"}
"""NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED."""
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
UNAVAILABLE = 2**32 - 1
"""The same of a function with an unsigned int."""
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
        self._faults: list[GpuFault] = []

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
        self._faults.clear()
        device = ctypes.c_void_p()
        names = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"
        if self._call(names, ctypes.c_uint(index), ctypes.byref(device)):
            processes, figures = self._processes(device), self._figures(device)
        elif not self._faults:
            reading.has_all_processes = False
            return
        else:
            processes, figures = None, {}
        reading.gpus.append(Gpu(index=index, fault=next(iter(self._faults), None), **figures))
        reading.has_all_processes &= processes is not None
        for pid, memory in processes or ():
            use = GpuUse(index=index, memory_bytes=memory if memory <= MAX_VALUE else None)
            reading.uses.setdefault(pid, []).append(use)

    def _figures(self, device: ctypes.c_void_p) -> dict[str, Any]:
        """The fields of a :class:`Gpu`, as far as the driver has them."""
        total, _, used = self._values("nvmlDeviceGetMemoryInfo", device, MEMORY) or (None, None, None)
        busy = self._number("nvmlDeviceGetUtilizationRates", device, layout=UTILISATION)
        power_mw = self._number("nvmlDeviceGetPowerUsage", device)
        return {
            "name": self._name_of(device),
            "pci": self._pci(device),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "utilisation_percent": busy if busy is not None and busy <= 100 else None,
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", device, SM_CLOCK),
            "temperature_c": self._number("nvmlDeviceGetTemperature", device, OF_GPU),
            "power_w": None if power_mw is None else power_mw / 1_000,
            "ecc_errors": self._number("nvmlDeviceGetTotalEccErrors", device, UNCORRECTED, SINCE_LOAD, layout="@Q"),
        }

    def _pci(self, device: ctypes.c_void_p) -> str:
        """``0000:3b:00``, as the kernel's log has it; empty if unknown."""
        buffer = ctypes.create_string_buffer(2 * MAX_NAME)
        versions = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
        if not self._call(versions, device, buffer):
            return ""
        domain, bus, slot = struct.unpack_from(PCI, buffer.raw)
        return f"{domain:04x}:{bus:02x}:{slot:02x}"

    def _number(self, function: str, device: ctypes.c_void_p, *which: int, layout: str = "@I") -> int | None:
        """The first value of a function whose arguments before the result say which one."""
        value = next(iter(self._values(function, device, layout, *map(ctypes.c_uint, which))), None)
        return None if value == UNAVAILABLE else value

    def _name_of(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(MAX_NAME)
        if not self._call(("nvmlDeviceGetName",), device, text, ctypes.c_uint(MAX_NAME)):
            return ""
        return text.value.decode("utf-8", "replace")

    def _values(self, function: str, device: ctypes.c_void_p, layout: str, *which: ctypes.c_uint) -> tuple[int, ...]:
        """The values of a struct; none if the driver or the GPU has no such figures."""
        buffer = ctypes.create_string_buffer(struct.calcsize(layout))
        values = struct.unpack(layout, buffer.raw) if self._call((function,), device, *which, buffer) else ()
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
        status: int | None = None if function is None else function(*arguments)
        if status in FAULTS:
            self._faults.append(FAULTS[status])
        return status == SUCCESS


def _unpacked(data: bytes, size: int) -> Iterator[tuple[int, int]]:
    for at in range(0, len(data), size):
        pid, used = struct.unpack_from(PROCESS, data, at)
        yield pid, used


DEVICES = "/dev/nvidia"
"""The devices that every process with a CUDA context has mapped."""
CUDA_LIBRARY = "/libcuda.so"
"""The library of the driver; a process that has loaded it and mapped no device is in between."""
CONTROL = "/dev/nvidiactl"
KERNEL_LOG = "/dev/kmsg"
XID = re.compile(
    rb"[0-7],\d+,(\d+),[^;]*;NVRM: Xid \((?:PCI:)?([0-9a-f:]{8,16})(?:\.\d)?\): (\d{1,4})\b", re.IGNORECASE
)
"""A record of the kernel's own, with the microseconds since its start, the GPU and the number of the error. A process
can write to the log as well, but not with a priority below 8. The form is that of drivers 460 to 580; not run."""
MAX_XIDS = 64
RECORD, MAX_READS = 1 << 14, 1 << 16


def has_driver() -> bool:
    """Whether NVIDIA's driver is loaded and visible: all that a node without GPUs pays for."""
    return os.path.exists(CONTROL)


class XidLog:
    """The errors of GPUs in the kernel's log; each reading goes on where the last one ended."""

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self._path = path
        self._fd: int | None = None
        self._found: list[Xid] = []

    def read(self) -> tuple[Xid, ...]:
        """The last ones, oldest first; none where this user may not read the log."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        began_at = time.time() - time.monotonic()
        for line in self._lines(self._fd):
            if match := XID.match(line):
                since_start_us, pci, code = match.groups()
                at = began_at + int(since_start_us) / 1e6
                self._found.append(Xid(code=int(code), pci=_short_pci(pci.decode().lower()), at=round(at, 3)))
        del self._found[:-MAX_XIDS]
        return tuple(self._found)

    def _lines(self, fd: int) -> Iterator[bytes]:
        """The unread lines: the kernel gives one record for each call."""
        for _ in range(MAX_READS):
            try:
                data = os.read(fd, RECORD)
            except BrokenPipeError:  # the next records were overwritten
                continue
            except BlockingIOError:
                return
            if not data:
                return
            yield from data.splitlines()


def _short_pci(address: str) -> str:
    """An address with a domain of four digits, where the driver has it with eight."""
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):04x}:{rest}"
