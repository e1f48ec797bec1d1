"""CPU use of real processes, by the kernel's counters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dstack.probes.node.figures import cpu
from dstack.probes.node.figures.cpu import CpuMeter, CpuUse
from dstack.probes.node.procfs import proc
from tests.processes import wait_until

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
    monkeypatch.setattr(cpu, "MIN_OVER_S", 0.0)
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
