"""The GPUs of a node, by a library with the functions of NVML, and the errors of GPUs in a kernel's log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dstack.observed.node import Gpu
from dstack.observed.processes import GpuUse
from dstack.probes.node import gpus as module
from dstack.probes.node.gpus import MAX_GPUS, GpuReading, Nvml, XidLog
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


def test_further_figures_are_those_that_the_driver_has(tmp_path: Path) -> None:
    first, second = read(tmp_path, ALL_FIGURES=1).gpus

    assert (first.pci, first.sm_clock_mhz, first.temperature_c) == ("0000:3b:00", 1410, 63)
    assert (first.power_w, first.ecc_errors, first.fault) == (301.5, 2, None)
    assert second.pci == "0000:b1:00"
    assert (second.sm_clock_mhz, second.temperature_c, second.power_w, second.ecc_errors) == (None,) * 4


@pytest.mark.parametrize(("status", "fault"), [(15, "lost"), (16, "needs a reset")])
@pytest.mark.parametrize("where", ["LOST", "LOST_HANDLE"])
def test_a_gpu_that_the_driver_has_lost_is_reported(tmp_path: Path, status: int, fault: str, where: str) -> None:
    found = read(tmp_path, **{where: status})

    assert [gpu.fault for gpu in found.gpus] == [None, fault]
    assert found.gpus[1].memory_used_bytes is None
    assert found.uses == USES
    assert not found.has_all_processes


def test_another_error_of_a_gpu_is_no_fault(tmp_path: Path) -> None:
    assert [gpu.fault for gpu in read(tmp_path, LOST=999).gpus] == [None, None]


def record(priority: int, since_start_us: int, text: str) -> str:
    return f"{priority},339,{since_start_us},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"


LOG = "".join(
    (
        record(6, 0, "Linux version 6.1"),
        record(4, 61_500_000, "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"),
        record(4, 62_000_000, "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."),
        record(12, 63_000_000, "NVRM: Xid (PCI:0000:3b:00): 48, written by a process"),
        record(6, 63_000_000, "a name NVRM: Xid (PCI:0000:3b:00): 48"),
        record(4, 64_000_000, "NVRM: Xid (PCI:00000000:B1:00): 31, pid=7, name=python, MMU Fault"),
        record(4, 65_000_000, "NVRM: Xid (0000:b1:00): 13, Graphics Exception"),
        record(4, 66_000_000, "NVRM: Xid (PCI:0000:b1:00): many"),
    )
)


def test_errors_are_those_that_the_kernel_itself_has_logged(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LOG)
    began_at = time.time() - time.monotonic()
    found = XidLog(str(path)).read()

    assert [(one.code, one.pci) for one in found] == [(79, "0000:3b:00"), (31, "0000:b1:00"), (13, "0000:b1:00")]
    assert found[0].at == pytest.approx(began_at + 61.5, abs=1.0)


def test_a_log_is_read_on_from_its_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_XIDS", 2)
    path = tmp_path / "kmsg"
    path.write_text(LOG)
    log = XidLog(str(path))

    assert [one.code for one in log.read()] == [31, 13]
    assert [one.code for one in log.read()] == [31, 13]
    with path.open("a") as file:
        file.write(record(4, 70_000_000, "NVRM: Xid (PCI:0000:3b:00): 95, pid=9"))
    assert [one.code for one in log.read()] == [13, 95]


def test_records_that_were_overwritten_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    answers: list[bytes | OSError] = [BrokenPipeError(), LOG.encode(), BlockingIOError()]

    def answer(*_: object) -> bytes:
        match answers.pop(0):
            case OSError() as error:
                raise error
            case data:
                return data

    log = XidLog(str(path))
    assert log.read() == ()
    monkeypatch.setattr(os, "read", answer)
    assert len(log.read()) == 3


def test_a_log_that_may_not_be_read_raises_what_a_late_reading_drops(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        XidLog(str(tmp_path / "absent")).read()
