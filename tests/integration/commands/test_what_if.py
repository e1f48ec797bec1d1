"""What ``dstack timeline`` predicts of a program, against the same program on a cluster that has the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dstack.analysis.history.simulation import ActorCount, Change, ResourceTotal
from dstack.analysis.history.what_if import WhatIf
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from tests.clusters.dstack_command import CHECK_PAUSE_S, dstack
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

PROGRAM = PROGRAMS / "drivers" / "repeated_steps.py"
REPORTED_S = 60.0
"""Deadline for the events of a program to reach the GCS: workers report once a second."""
ITERATIONS = 4


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[RayCluster]:
    with ray_cluster(num_cpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def four_cpus() -> Iterator[RayCluster]:
    with ray_cluster(num_cpus=4) as cluster:
        yield cluster


def run(cluster: RayCluster, arguments: Sequence[str], folder: Path) -> WhatIf:
    """What the history of a program says after some of its steps."""
    file = folder / "snapshot.json.gz"

    def observed() -> WhatIf | None:
        done = dstack(
            "snapshot", "--address", cluster.address, "-o", str(file), "--force", environment=cluster.environment
        )
        assert done.returncode == 0, done.stderr
        timeline = AnalysedSnapshot.of(load(file)).timeline
        path = timeline.critical_path if timeline else None
        if timeline is None or path is None or path.iterations is None:
            return None
        is_of_program = timeline.run.title.endswith(PROGRAM.name)
        is_long = len(path.iterations.durations_s) >= ITERATIONS
        return WhatIf(timeline.run, path) if is_of_program and is_long else None

    with cluster.run_example(PROGRAM, arguments):
        return wait_until(
            observed, deadline_s=REPORTED_S, what=lambda: "some iterations are known", pause_s=CHECK_PAUSE_S
        )


def predicted(what_if: WhatIf, change: Change) -> float:
    found = what_if.predict([change])
    assert found is not None
    return found.seconds


@pytest.mark.parametrize("kind", ["arguments", "nested", "window"])
def test_other_cpus(kind: str, two_cpus: RayCluster, four_cpus: RayCluster, tmp_path: Path) -> None:
    few, many = run(two_cpus, [kind], tmp_path), run(four_cpus, [kind], tmp_path)

    assert predicted(few, ResourceTotal("CPU", 4.0)) == pytest.approx(many.recorded_s, rel=0.2)
    assert predicted(many, ResourceTotal("CPU", 2.0)) == pytest.approx(few.recorded_s, rel=0.2)


def test_other_actors(two_cpus: RayCluster, tmp_path: Path) -> None:
    few, many = run(two_cpus, ["pool", "2"], tmp_path), run(two_cpus, ["pool", "4"], tmp_path)

    assert predicted(few, ActorCount("Worker", 4)) == pytest.approx(many.recorded_s, rel=0.2)
    assert predicted(many, ActorCount("Worker", 2)) == pytest.approx(few.recorded_s, rel=0.2)
