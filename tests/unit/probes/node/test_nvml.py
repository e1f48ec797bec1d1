"""Figures of GPUs from a library with the functions of NVML: each call checked, each layout known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstack.observed.node import Gpu
from dstack.observed.processes import GpuUse
from dstack.probes.node.nvml import MAX_GPUS, GpuReading, Nvml
from tests.unit.probes.node.fake_nvml import compiled

GIB = 2**30
USES: dict[int, list[GpuUse]] = {
    4242: [GpuUse(index=0, memory_bytes=40 * GIB)],
    1: [GpuUse(index=0, memory_bytes=None)],
    99: [GpuUse(index=0, memory_bytes=2 * GIB)],
}


def gpu(index: int, name: str, utilisation_percent: float) -> Gpu:
    return Gpu(
        index=index,
        name=name,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=60 * GIB,
        utilisation_percent=utilisation_percent,
    )


def read(folder: Path, **macros: object) -> GpuReading:
    found = Nvml(compiled(folder, **macros)).read()
    assert found is not None
    return found


def test_gpus_have_memory_and_utilisation_and_processes_their_memory(tmp_path: Path) -> None:
    nvml = Nvml(compiled(tmp_path))

    for _ in range(2):
        found = nvml.read()
        assert found == GpuReading(
            [
                Gpu(
                    index=0,
                    name="Fake A100",
                    memory_total_bytes=80 * GIB,
                    memory_used_bytes=60 * GIB,
                    utilisation_percent=93,
                ),
                Gpu(
                    index=1,
                    name="Fake B200",
                    memory_total_bytes=80 * GIB,
                    memory_used_bytes=60 * GIB,
                    utilisation_percent=7,
                ),
            ],
            USES,
        )


@pytest.mark.parametrize("size", [16, 24, 32])
@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_entries_of_processes_are_read_in_each_size_that_drivers_use(tmp_path: Path, size: int, version: str) -> None:
    found = read(tmp_path, ENTRY_SIZE=size, LISTED=f"nvmlDeviceGetComputeRunningProcesses{version}")

    assert found.uses == USES
    assert found.has_all_processes


@pytest.mark.parametrize("macros", [{"ENTRY_SIZE": 48}, {"NO_PROCESSES": 1}, {"TOO_MANY": 1}, {"LISTED": "nvmlOther"}])
def test_processes_in_an_unknown_form_are_left_out(tmp_path: Path, macros: dict[str, object]) -> None:
    found = read(tmp_path, **macros)

    assert not found.uses
    assert not found.has_all_processes
    assert [gpu.memory_used_bytes for gpu in found.gpus] == [60 * GIB] * 2


def test_a_missing_function_leaves_its_figure_out(tmp_path: Path) -> None:
    found = read(tmp_path, NO_UTILISATION=1)

    assert all(gpu.utilisation_percent is None and gpu.memory_used_bytes for gpu in found.gpus)


def test_impossible_values_are_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, NONSENSE=1)

    assert found.gpus == [Gpu(index=0, name="Fake A100"), Gpu(index=1, name="Fake B200")]


def test_the_number_of_gpus_is_bounded(tmp_path: Path) -> None:
    found = read(tmp_path, MANY=1)

    assert MAX_GPUS > len(found.gpus) == 2
    assert not found.has_all_processes


def test_a_node_without_the_library_or_a_driver_has_no_gpus(tmp_path: Path) -> None:
    damaged = tmp_path / "libnvidia-ml.so.1"
    damaged.write_bytes(b"\x7fELF" + bytes(100))

    for library in ("libno-such-library.so.9", str(damaged), compiled(tmp_path, NO_DRIVER=1)):
        nvml = Nvml(library)
        assert nvml.read() is None
        assert nvml.read() is None
