"""The verdict of a snapshot, its completeness, and the workers of interest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given

from dstack.analysis.diagnose import diagnose
from dstack.analysis.solve.open_chains import MAX_RANKED
from dstack.files.snapshot_file import save
from dstack.model.diagnosis import Ratio
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from tests.fuzzing.effort import examples
from tests.paths import ROOT
from tests.unit.analysis.findings.kinds.small_findings import infeasible, kinds, ring
from tests.unit.scenes import Scene
from tests.unit.support.random_snapshots import related_snapshots

# Verdicts


def test_a_snapshot_without_a_sample_is_incomplete() -> None:
    snapshot = Snapshot(dstack_version="0.1.0", taken_at=0.0, address="h:1", ray_version="2.60.0")

    diagnosis = diagnose(snapshot)

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("unknown", True, ())


def test_an_empty_cluster_is_idle() -> None:
    scene = Scene()
    scene.node()

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("idle", False, ())


def test_a_cluster_without_waits_is_running() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    actor.runs(scene.call(actor, "work", by=driver))

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("running", False, ())


def test_the_worst_finding_gives_the_verdict_and_comes_first() -> None:
    scene = Scene()
    ring(scene, "Left", "Right")
    unlucky, patient = scene.driver(), scene.driver()
    unlucky.gets(infeasible(scene, by=unlucky))
    work, _ = scene.run("work", by=patient)
    patient.gets(work)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert kinds(diagnosis) == ["deadlock", "infeasible", "running"]


def test_a_hang_is_worse_than_an_open_chain() -> None:
    scene = Scene()
    unlucky, patient = scene.driver(), scene.driver()
    unlucky.gets(infeasible(scene, by=unlucky))
    work, _ = scene.run("work", by=patient)
    patient.gets(work)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "hang"
    assert kinds(diagnosis) == ["infeasible", "running"]


# Completeness


def test_a_fully_observed_cluster_is_complete() -> None:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call)

    diagnosis = scene.diagnose()

    assert not diagnosis.incomplete
    assert diagnosis.coverage.workers == Ratio(observed=2, total=2)
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=1)


@pytest.mark.parametrize("hidden", ["is_unreachable", "is_unreadable", "has_no_stacks"])
def test_an_unobserved_worker_might_be_stuck(hidden: str) -> None:
    scene = Scene()
    scene.driver()
    setattr(scene.worker(scene.node(CPU=1.0)), hidden, True)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)
    assert diagnosis.coverage.workers == Ratio(observed=1, total=2)
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=2)


def test_a_wait_for_an_unlisted_ref_might_never_end() -> None:
    scene = Scene()
    scene.driver().gets("ab" * 28)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)


def test_a_chain_that_ends_in_a_coroutine_is_incomplete() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Server")
    actor.thread("AsyncIO Thread: default", role="loop")
    call = scene.call(actor, "serve", by=driver)
    actor.runs(call)
    driver.gets(call)

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", True)


def test_a_failure_of_the_control_plane_is_a_gap() -> None:
    scene = Scene()
    scene.driver()
    scene.failures.append(Failure(stage="control plane", reason="the GCS did not return its actors"))

    assert scene.diagnose().incomplete


def test_a_deadlock_is_found_whatever_else_was_not_observed() -> None:
    scene = Scene()
    ring(scene, "Left", "Right")
    scene.worker().is_unreadable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("deadlock", False)
    assert diagnosis.coverage.workers.observed < diagnosis.coverage.workers.total


def test_a_dead_node_is_no_gap() -> None:
    scene = Scene()
    scene.driver(scene.node(CPU=1.0))
    scene.node(CPU=1.0, alive=False)

    diagnosis = scene.diagnose()

    assert not diagnosis.incomplete
    assert diagnosis.coverage.nodes == Ratio(observed=1, total=1)


def test_calls_whose_stacks_were_not_read_are_no_finding_of_their_own() -> None:
    scene = Scene()
    driver = scene.driver()
    for _ in range(3):
        actor = scene.actor("Worker")
        actor.runs(scene.call(actor, "work", by=driver))
        actor.is_unreadable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.findings) == ("unknown", True, ())


# Random snapshots


@given(related_snapshots())
@examples(150, suppress_health_check=[HealthCheck.too_slow])
def test_findings_and_waits_refer_to_existing_vertices(snapshot: Snapshot) -> None:
    diagnosis = diagnose(snapshot)

    reported = {
        key
        for finding in diagnosis.findings
        for key in (*finding.members, *finding.blocked_behind, *(blocker.vertex for blocker in finding.final_blockers))
    }
    waited_for = {
        target.vertex
        for vertex in diagnosis.vertices.values()
        if vertex.wait
        for group in vertex.wait.groups
        for target in group.targets
    }
    assert reported | waited_for <= diagnosis.vertices.keys()


def test_the_same_snapshot_gives_the_same_diagnosis_in_every_process(tmp_path: Path) -> None:
    scene = Scene()
    for names in ("AB", "CD", "EFG", "HIJ"):
        first, *_ = ring(scene, *names)
        first.gets(first.submitted[0], infeasible(scene, by=first))
    for _ in range(2 * MAX_RANKED):
        call, _ = scene.run("work", by=scene.procs[0])
        scene.driver().gets(call)
    scene.sample().second_sample()
    file = tmp_path / "snapshot.json"
    save(scene.snapshot(), file)

    show = [sys.executable, "-c", f"from dstack.cli import main; main(['show', '--json', {str(file)!r}])"]
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "123"]
    outputs = {subprocess.run(show, cwd=ROOT, env=seed, capture_output=True, check=True).stdout for seed in seeds}

    assert len(outputs) == 1
