"""The figures of this node in the answer of its probe, with a library in place of NVIDIA's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from dstack.model import Node
from dstack.observed import Process
from dstack.probes.node.figures import node_figures
from dstack.probes.node.figures.node_figures import NodeFigures
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.procfs import proc
from dstack.probes.node.wire import HostData
from tests.processes import wait_until
from tests.sampling import sample, target
from tests.unit.probes.node.figures.fake_nvml import compiled

GIB = 2**30


def figures_of(library: str) -> tuple[NodeFigures, HostData]:
    """The figures after one sample of this process."""
    own = proc.figures(os.getpid())
    assert own is not None
    figures = NodeFigures(library)
    figures.begin()
    figures.note(os.getpid(), own)
    figures.begin_disks()
    return figures, figures.end(time.monotonic() + 60)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine does not make a reading late."""
    monkeypatch.setattr(node_figures, "WAIT_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_process_has_the_gpus_that_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, host = figures_of(compiled(tmp_path, PID=os.getpid()))

    assert [gpu.get("utilisation_percent") for gpu in host["gpus"]] == [93, 7]
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: True)
    assert figures.gpus(os.getpid()) == [{"index": 0, "memory_bytes": 40 * GIB}]
    assert figures.gpus(os.getppid()) == []


@pytest.mark.usefixtures("patient")
def test_in_a_container_a_pid_counts_only_if_its_process_has_mapped_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, _ = figures_of(compiled(tmp_path, PID=os.getpid()))
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: False)

    assert figures.gpus(os.getpid()) == []
    monkeypatch.setattr(proc, "has_mapped", lambda pid, part: part == "/dev/nvidia")
    assert figures.gpus(os.getpid()) == [{"index": 0, "memory_bytes": 40 * GIB}]
    assert figures.gpus(os.getppid()) is None


@pytest.mark.usefixtures("patient")
def test_without_a_complete_list_an_unlisted_process_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc, "is_in_first_pid_namespace", lambda: True)

    assert figures_of(compiled(tmp_path, NO_PROCESSES=1))[0].gpus(os.getpid()) is None
    figures, host = figures_of("libno-such-library.so.9")
    assert figures.gpus(os.getpid()) is None
    assert "gpus" not in host


def test_a_driver_that_hangs_costs_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_figures, "WAIT_S", 0.01)
    figures, host = figures_of(compiled(tmp_path, HANGS=1))

    assert "gpus" not in host
    assert figures.gpus(os.getpid()) is None
    figures.begin()
    assert "gpus" not in figures.end(time.monotonic() + 60)


def test_an_answer_has_the_cpu_use_of_each_process() -> None:
    probe = NodeProbe()

    def answer() -> dict[str, object] | None:
        process = sample(target(os.getpid()), probe=probe)["processes"]["w"]
        return process if "cpu_percent" in process else None

    process = msgspec.convert(wait_until(answer, deadline_s=60, what=lambda: "a measured use"), Process)

    assert process.cpu_percent is not None
    assert process.cpu_percent >= 0
    assert process.cpu_over_s > 0
    assert process.gpus is None


@pytest.mark.usefixtures("patient")
def test_the_figures_of_the_host_are_those_of_a_node() -> None:
    host = sample(target(os.getpid()))["host"]
    node = msgspec.convert({"node_id": "n", "ip": "10.0.0.1", **host}, Node)

    assert node.memory_total_bytes
    assert node.gpus is None or node.gpus
