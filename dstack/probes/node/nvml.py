"""NVIDIA's management library (NVML) through ctypes: memory and use of the GPUs, and of the processes on them.

It belongs to the driver, so it is on every node with an NVIDIA GPU. It may hang on a broken driver: read it late. Each
call is checked, and a figure without an answer is left out. The layouts are those of ``nvml.h``, as bytes: a class of
ctypes could not travel to other nodes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from dstack.observed.node import Gpu
from dstack.observed.processes import GpuUse

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
