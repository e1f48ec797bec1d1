"""Figures of processes, nodes, GPUs and placement groups of a real cluster of two nodes, from a saved snapshot."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.inventory import ClusterInventory
from dstack.analysis.views.worker_groups import Order, WorkerGrouping, WorkerGroups
from dstack.analysis.views.worker_state import CPU, GPU_MEMORY
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.probes.node.procfs import proc
from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import Example, ray_cluster
from tests.paths import PROGRAMS
from tests.processes import wait_until
from tests.unit.probes.node.fake_nvml import compiled

pytestmark = pytest.mark.ray
GIB = 2**30


@dataclass(frozen=True)
class Placed:
    """The running program, and the pids of its actor that computes and of its idle actor."""

    example: Example
    busy: int
    idle: int


@pytest.fixture(scope="module")
def placed() -> Iterator[Placed]:
    with ray_cluster(2) as cluster, cluster.run_example(PROGRAMS / "drivers/placed_actors.py") as example:
        lines = example.log.read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("expected "))
        yield Placed(example, **json.loads(line.removeprefix("expected ")))


def snapshot_of(placed: Placed, folder: Path, **variables: str) -> Snapshot:
    """A saved snapshot, taken with these environment variables."""
    path = folder / "snapshot.json.gz"
    environment = {**placed.example.environment, **variables}
    arguments = ["--address", placed.example.address, "-o", str(path), "--force", "--no-history"]
    done = dstack("snapshot", *arguments, environment=environment)
    assert path.exists(), done.stderr
    return load(path)


def test_the_actor_that_computes_uses_more_cpu(placed: Placed, tmp_path: Path) -> None:
    def figures() -> tuple[float, float] | None:
        groups = groups_of(snapshot_of(placed, tmp_path))
        (everyone,) = groups.groups(WorkerGrouping("all"), Order())
        ordered = groups.workers(everyone.workers, Order(CPU))
        by_pid = {one.worker.pid: one.figures for one in ordered}
        busy, idle = by_pid[placed.busy], by_pid[placed.idle]
        assert busy.rss_bytes
        assert busy.num_threads
        assert busy.age_s
        if busy.is_cpu_average or busy.cpu_percent is None or idle.cpu_percent is None:
            return None
        return busy.cpu_percent, idle.cpu_percent

    busy, idle = wait_until(figures, deadline_s=120, what=lambda: "a measured use of CPU")
    assert busy > idle
    assert busy > 5


def groups_of(snapshot: Snapshot) -> WorkerGroups:
    analysed = AnalysedSnapshot.of(snapshot)
    return WorkerGroups(analysed.merged_index, ClusterInventory(analysed.merged_index, analysed.diagnosis))


def test_bundles_have_their_nodes_and_their_actors(placed: Placed, tmp_path: Path) -> None:
    groups = groups_of(snapshot_of(placed, tmp_path))
    group = groups.groups(WorkerGrouping("placement group"), Order())[0]

    assert "apart" in group.title
    assert [[worker.pid for worker in bundle.workers] for bundle in group.bundles] == [[placed.busy], [placed.idle]]
    nodes = [bundle.node.node_id if bundle.node else None for bundle in group.bundles]
    assert len(set(nodes)) == 2
    assert None not in nodes
    assert [bundle.amounts[0].words for bundle in group.bundles] == ["CPU 1 of 1 used, 0 free"] * 2
    stages = groups.groups(WorkerGrouping("label", "stage"), Order())
    assert [group.title for group in stages] == ["stage=burn", "stage=rest", "no stage"]


def test_nodes_have_the_disks_of_ray_and_their_object_store(placed: Placed, tmp_path: Path) -> None:
    snapshot = snapshot_of(placed, tmp_path)

    for node in snapshot.nodes:
        uses = {disk.use: disk for disk in node.host.disks}
        assert uses.keys() == {"session", "spilled objects", "object store"}
        assert Path(uses["session"].path, "sockets").is_dir()
        assert 0 < uses["session"].free_bytes <= uses["session"].total_bytes
    assert all(free["object_store_memory"] > 0 for free in snapshot.samples[0].available.values())


def test_gpus_come_from_the_library_of_the_driver(placed: Placed, tmp_path: Path) -> None:
    library = Path(compiled(tmp_path, PID=placed.busy))
    paths = [str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]

    def snapshot() -> Snapshot | None:
        found = snapshot_of(placed, tmp_path, LD_LIBRARY_PATH=":".join(filter(None, paths)))
        return found if any(node.host.gpus for node in found.nodes) else None

    found = wait_until(snapshot, deadline_s=120, what=lambda: "GPUs, which a busy machine may read too late")
    for node in found.nodes:
        assert [(gpu.name, gpu.utilisation_percent) for gpu in node.host.gpus or ()] == [
            ("Fake A100", 93.0),
            ("Fake B200", 7.0),
        ]
    if proc.is_in_first_pid_namespace():
        groups = groups_of(found)
        figures = {one.worker.pid: one.figures for one in groups.workers(found.workers, Order(GPU_MEMORY))}
        assert next(iter(figures)) == placed.busy
        assert (figures[placed.busy].gpu_memory_bytes, figures[placed.busy].gpu_percent) == (40 * GIB, 93.0)
        assert figures[placed.idle].gpu_memory_bytes == 0
