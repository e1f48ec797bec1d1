"""Works that are reported as stuck on resources are stuck; all are found if they need one GPU."""

from __future__ import annotations

from hypothesis import event, example, given

from tests.unit.analysis.soundness.claims import claimed_keys, hide, hidings, many
from tests.unit.simulations.lifetimes import ClusterScene as LifetimeScene
from tests.unit.simulations.lifetimes import Process as HoldingProcess
from tests.unit.simulations.lifetimes import Request, lifetime_clusters
from tests.unit.simulations.lifetimes import SimulatedCluster as LifetimeCluster


@given(lifetime_clusters())
@many
def test_works_that_are_reported_as_stuck_on_resources_are_stuck(cluster: LifetimeCluster) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    event("stuck" if found else "not stuck")
    assert found <= cluster.stuck()


@given(lifetime_clusters(one_gpu_each=True))
@many
def test_all_works_that_are_stuck_on_one_gpu_are_found(cluster: LifetimeCluster) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    event("stuck" if cluster.stuck() else "not stuck")
    assert found == cluster.stuck()


PASSED_ON = LifetimeCluster(
    nodes=[2],
    processes=[
        HoldingProcess(kind="driver", job=0, owner=0, waits_for=(3, 4)),
        HoldingProcess(kind="driver", job=1, owner=1, waits_for=(3,)),
        HoldingProcess(kind="actor", job=0, owner=0, gpus=2, idle=True),
        HoldingProcess(kind="actor", job=1, owner=1, handles={2: "variable"}),
    ],
    requests=[Request(owner=0, gpus=1)],
    groups=[],
)
"""An actor of another job has the handle of the idle actor that holds all GPUs, and is not observed."""


CREATOR_PROCEEDS = LifetimeCluster(
    nodes=[1],
    processes=[
        HoldingProcess(kind="driver", job=0, owner=0),
        HoldingProcess(kind="driver", job=1, owner=1, waits_for=(4,)),
        HoldingProcess(kind="actor", job=1, owner=1, gpus=1, idle=True),
        HoldingProcess(kind="actor", job=0, owner=0, idle=True, handles={2: "variable"}, named_in=1, detached=True),
    ],
    requests=[Request(owner=1, gpus=1)],
    groups=[],
)
"""The creator of a detached actor runs, and may call it; the detached actor may end the holder."""


@given(lifetime_clusters(), hidings)
@example(CREATOR_PROCEEDS, [""] * 4)
@example(PASSED_ON, [*[""] * 3, "unreachable"])
@many
def test_an_unobserved_holder_may_release_its_resources(cluster: LifetimeCluster, hidings: list[str]) -> None:
    shown = LifetimeScene(cluster)
    work_numbers = shown.work_numbers()
    for proc, how in zip(shown.scene.procs, hidings, strict=False):
        hide(proc, how)

    found = {work_numbers[key] for key in claimed_keys(shown.scene.diagnose()) if key in work_numbers}

    assert found <= cluster.stuck()
