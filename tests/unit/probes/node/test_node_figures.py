"""The figures of a node and its processes; a reading that hangs costs its time once, and never more threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from dstack.observed.node import HostFigures, Xid
from dstack.observed.processes import GpuUse, Process
from dstack.probes.node import node_figures as module
from dstack.probes.node.node_figures import CpuMeter, CpuUse, LateReading, NodeFigures, disks
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from tests.processes import wait_until
from tests.sampling import Plain, sample, target
from tests.unit.probes.node.fake_nvml import compiled

LONG_S = 60.0
GIB = 2**30


def test_a_result_that_is_there_in_time_is_taken() -> None:
    late: LateReading[int] = LateReading()

    assert late.result(LONG_S) is None
    late.begin(lambda: 1)
    assert late.result(LONG_S) == 1
    late.begin(lambda: 2)
    assert late.result(LONG_S) == 2


def test_an_exception_is_no_result() -> None:
    late: LateReading[float] = LateReading()
    late.begin(lambda: 1 / 0)

    assert late.result(LONG_S) is None


def test_a_reading_that_hangs_is_awaited_once_and_not_begun_again() -> None:
    late: LateReading[int] = LateReading()
    over, begun = threading.Event(), threading.Semaphore(0)

    def hang() -> int:
        begun.release()
        over.wait(LONG_S)
        return 1

    late.begin(hang)
    assert begun.acquire(timeout=LONG_S)
    assert late.result(0.01) is None
    late.begin(hang)
    assert late.result(LONG_S) is None  # at once: a second wait of a minute would fail the test by its deadline
    assert not begun.acquire(blocking=False)

    over.set()
    (thread,) = (one for one in threading.enumerate() if one is late._thread)
    thread.join(LONG_S)
    late.begin(lambda: 2)
    assert late.result(LONG_S) == 2


SPINS = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time; print(flush=True); time.sleep(1000)"


@contextmanager
def running(script: str) -> Iterator[tuple[int, proc.Birth]]:
    """The pid and the birth of a process that runs this script."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        figures = proc.figures(process.pid)
        assert figures is not None
        try:
            yield process.pid, figures.birth
        finally:
            process.kill()


def test_a_process_has_the_cpu_time_that_its_counters_show() -> None:
    meter = CpuMeter()
    with running(SPINS) as (busy, birth), running(SLEEPS) as (idle, idle_birth):
        before = proc.cpu_clock(busy)
        meter.note(busy, birth)
        meter.note(idle, idle_birth)
        after_note = proc.cpu_clock(busy)
        assert before is not None
        assert after_note is not None
        wait_until(lambda: (proc.cpu_clock(busy) or 0) > before + 0.3, deadline_s=60, what=lambda: "0.3 s of CPU time")
        least = proc.cpu_clock(busy)
        use, of_idle = meter.use(busy, birth), meter.use(idle, idle_birth)
        most = proc.cpu_clock(busy)

    assert use is not None
    assert of_idle is not None
    assert least is not None
    assert most is not None
    assert least - after_note <= use.percent * use.over_s / 100 + 0.01
    assert use.percent * use.over_s / 100 <= most - before + 0.01
    assert of_idle.percent < use.percent


def test_the_use_is_measured_from_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, own, times = CpuMeter(), proc.figures(os.getpid()), [100.0]
    assert own is not None
    monkeypatch.setattr("time.monotonic", lambda: times[-1])
    monkeypatch.setattr(proc, "cpu_clock", lambda _: (times[-1] - 100.0) / 2)
    found = []
    for now_s in (100.0, 100.005, 101.0, 104.0):
        times.append(now_s)
        meter.note(os.getpid(), own.birth)
        found.append(meter.use(os.getpid(), own.birth))

    assert found == [None, None, CpuUse(50.0, 1.0), CpuUse(50.0, 4.0)]


def test_a_process_that_ended_or_is_another_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_OVER_S", 0.0)
    meter = CpuMeter()
    with running(SLEEPS) as (pid, birth):
        meter.note(pid, birth)
        assert meter.use(pid, birth)
        assert meter.use(pid, proc.Birth(birth.start_ticks + 1, birth.stack_start)) is None
        assert meter.use(os.getpid(), birth) is None

    assert meter.use(pid, birth) is None


def test_the_host_has_a_share_of_all_cpus() -> None:
    meter = CpuMeter()
    assert meter.host_percent() is None
    meter.begin()
    with running(SPINS):
        found = wait_until(
            lambda: (meter.host_percent(),) if meter.host_percent() is not None else None,
            deadline_s=60,
            what=lambda: "enough ticks",
        )

    (percent,) = found
    assert percent is not None
    assert 0 < percent <= 100


@pytest.mark.parametrize("text", ["", "cpu 1 2", "cpu a b c d e f g h", "intr 5"])
def test_counters_in_another_form_are_unknown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_lines", lambda _: [text])

    assert proc.cpu_ticks() is None


RENAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'raylet'); print(flush=True); input()"


@contextmanager
def raylet(*options: str, script: str = RENAMED) -> Iterator[int]:
    """The pid of a process with the name and these options of a raylet."""
    command = [sys.executable, "-c", script, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_the_session_the_spilling_and_the_store_have_their_file_systems(tmp_path: Path) -> None:
    options = [
        f"--raylet_socket_name={tmp_path}/sockets/raylet",
        "--python_worker_command=python --plasma_directory=/elsewhere " + "x" * 9_000,
        "--plasma_directory=/dev/shm",
        f"--fallback_directory={tmp_path}",
    ]
    with raylet(*options) as pid:
        found = disks([pid, pid, 1])

    assert [(disk.use, disk.path) for disk in found] == [
        ("session", str(tmp_path)),
        ("object store", "/dev/shm"),
        ("spilled objects", str(tmp_path)),
    ]
    assert [disk.total_bytes for disk in found] == [psutil.disk_usage(disk.path).total for disk in found]
    assert all(0 <= disk.free_bytes <= disk.total_bytes for disk in found)


def test_directories_that_do_not_exist_or_make_no_sense_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DISKS", 2)
    folders = [f"--fallback_directory={path}" for path in ("relative", "/no/such", "/" + "x" * 5_000, "")]
    good = [tmp_path / str(number) for number in range(4)]
    for folder in good:
        folder.mkdir()
    with raylet(*folders, *(f"--fallback_directory={folder}" for folder in good)) as pid:
        found = disks([pid])

    assert [disk.path for disk in found] == [str(folder) for folder in good[:2]]


def test_only_raylets_are_asked() -> None:
    with raylet("--plasma_directory=/dev/shm", script="print(flush=True); input()") as pid:
        assert disks([pid]) == []
    assert disks([pid]) == []


def figures_of(library: str, kernel_log: str = "/no/such/log") -> tuple[NodeFigures, HostFigures]:
    """The figures after one sample of this process."""
    own = proc.figures(os.getpid())
    assert own is not None
    figures = NodeFigures(library, kernel_log)
    figures.begin()
    figures.note(os.getpid(), own)
    figures.begin_disks()
    return figures, figures.end(time.monotonic() + 60)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine does not make a reading late."""
    monkeypatch.setattr(module, "WAIT_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_process_has_the_gpus_that_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, host = figures_of(compiled(tmp_path, PID=os.getpid()))

    assert [gpu.utilisation_percent for gpu in host.gpus or ()] == [93, 7]
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: True)
    assert figures.gpus(os.getpid()) == (GpuUse(index=0, memory_bytes=40 * GIB),)
    assert figures.gpus(os.getppid()) == ()


@pytest.mark.usefixtures("patient")
def test_in_a_container_a_pid_counts_only_if_its_process_has_mapped_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, _ = figures_of(compiled(tmp_path, PID=os.getpid()))
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: False)

    assert figures.gpus(os.getpid()) == ()
    figures.begin()
    monkeypatch.setattr(proc, "has_mapped", lambda pid, part: part == "/dev/nvidia")
    assert figures.gpus(os.getpid()) == (GpuUse(index=0, memory_bytes=40 * GIB),)
    assert figures.gpus(os.getppid()) is None


@pytest.mark.usefixtures("patient")
def test_without_a_complete_list_an_unlisted_process_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: True)

    assert figures_of(compiled(tmp_path, NO_PROCESSES=1))[0].gpus(os.getpid()) is None
    figures, host = figures_of("libno-such-library.so.9")
    assert figures.gpus(os.getpid()) is None
    assert host.gpus is None


def test_a_driver_that_hangs_costs_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.01)
    figures, host = figures_of(compiled(tmp_path, HANGS=1))

    assert host.gpus is None
    assert figures.gpus(os.getpid()) is None
    figures.begin()
    again = figures.end(time.monotonic() + 60)
    assert again.gpus is None
    assert host.nvml_silent_s is not None
    assert again.nvml_silent_s is not None
    assert again.nvml_silent_s >= host.nvml_silent_s > 0


XID = "4,7,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus.\n"


@pytest.mark.parametrize("fault", ["HANGS", "HANGS_ON_DEVICE"])
def test_errors_of_gpus_are_read_also_if_the_driver_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    monkeypatch.setattr(module, "has_driver", lambda: True)
    log = tmp_path / "kmsg"
    log.write_text(XID)
    figures, host = figures_of(compiled(tmp_path, **{fault: 1}), str(log))

    def xids() -> tuple[Xid, ...]:  # a slow machine reads the log in a later sample
        figures.begin()
        return figures.end(time.monotonic() + 60).xids

    found = wait_until(xids, deadline_s=60, what=lambda: "the log")
    assert [(one.code, one.pci) for one in found] == [(79, "0000:3b:00")]
    assert host.gpus is None
    assert host.nvml_silent_s is not None


@pytest.mark.usefixtures("patient")
def test_whether_a_process_uses_cuda_is_known_where_the_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: True)
    figures, _ = figures_of(compiled(tmp_path, PID=os.getpid()))
    assert figures.cuda(os.getpid()) is None

    monkeypatch.setattr(module, "has_driver", lambda: True)
    figures, host = figures_of(compiled(tmp_path / "again", PID=os.getpid()))
    assert host.xids == ()
    assert figures.cuda(os.getpid()) == "listed"
    assert figures.cuda(os.getppid()) == "none"
    assert figures.cuda(2**22 + 1) is None  # its mappings are unreadable
    figures.begin()
    monkeypatch.setattr(proc, "has_mapped", lambda pid, part: part == "/dev/nvidia")
    assert figures.cuda(os.getppid()) == "mapped"
    figures.begin()
    monkeypatch.setattr(proc, "has_mapped", lambda pid, part: part == "/libcuda.so")
    assert figures.cuda(os.getppid()) is None


def test_an_answer_has_the_cpu_use_of_each_process() -> None:
    probe = NodeProbe()

    def answer() -> Plain | None:
        process = sample(target(os.getpid()), probe=probe)["processes"]["w"]
        return process if process["cpu_percent"] is not None else None

    process = msgspec.convert(wait_until(answer, deadline_s=60, what=lambda: "a measured use"), Process)

    assert process.cpu_percent is not None
    assert process.cpu_percent >= 0
    assert process.cpu_over_s > 0
    assert process.gpus is None


@pytest.mark.usefixtures("patient")
def test_an_answer_has_the_figures_of_the_host() -> None:
    host = msgspec.convert(sample(target(os.getpid()))["host"], HostFigures)

    assert host.memory_total_bytes
    assert host.gpus is None or host.gpus


def test_the_cpu_use_between_polls_is_unknown_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([busy_and_all for busy_and_all in ((100, 1_000), (150, 1_100), (160, 1_200)) for _ in range(2)])
    monkeypatch.setattr(proc, "cpu_ticks", lambda: next(ticks))
    figures = NodeFigures(nvml="/nonexistent")

    first, second = figures.between_polls(1.0), figures.between_polls(1.0)

    assert first.cpu_percent is None
    assert second.cpu_percent == 50.0
    assert second.memory_total_bytes
    assert figures.between_polls(1.0).cpu_percent == 10.0
