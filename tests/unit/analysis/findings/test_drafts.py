"""One finding for one cause: chains of one cause are one finding, and those of other causes stay apart."""

from __future__ import annotations

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.descriptions import describe
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis
from tests.examples.recorded import recorded
from tests.unit.scenes import Scene


def recorded_diagnosis(name: str) -> Diagnosis:
    return diagnose(load(recorded(name)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("hangs/failed_call_never_fetched", "stalled"),
        ("hangs/libraries/serve_replicas_start_each_other", "deadlock"),
        ("hangs/libraries/torch_driver_in_all_reduce", "orphaned"),
        ("look_alikes/libraries/torch_trainer_slow_before_barrier", "running"),
        ("look_alikes/libraries/train_awaits_slow_task", "running"),
        ("look_alikes/libraries/train_slow_rank", "running"),
        ("look_alikes/pool_of_slow_gets", "running"),
    ],
)
def test_what_repeats_the_cause_of_the_first_finding_is_part_of_it(name: str, kind: str) -> None:
    diagnosis = recorded_diagnosis(name)

    (finding,) = diagnosis.findings
    drivers = {
        key for key, vertex in diagnosis.vertices.items() if describe(vertex).startswith("driver") and vertex.wait
    }
    assert finding.kind == kind
    assert drivers <= {*finding.members, *finding.blocked_behind, *finding.polled_by}


@pytest.mark.parametrize(
    "name",
    ["look_alikes/engine_loop_started_again", "look_alikes/left_in_removed_group", "case_studies/register_center"],
)
def test_another_cause_stays_a_finding_of_its_own(name: str) -> None:
    assert len(recorded_diagnosis(name).findings) == 2


def slow_loads(scene: Scene, lines: tuple[int, int]) -> Diagnosis:
    for line in lines:
        driver = scene.driver()
        call, worker = scene.run("load", by=driver)
        worker.threads[0].line = line
        driver.gets(call)
    scene.sample().second_sample()
    return scene.diagnose()


def test_waits_for_the_same_line_are_one_finding_with_both_blockers() -> None:
    (finding,) = slow_loads(Scene(), (7, 7)).findings

    assert len(finding.final_blockers) == 2
    assert len(finding.members) == 2


def test_waits_for_different_lines_are_two_findings() -> None:
    assert len(slow_loads(Scene(), (7, 8)).findings) == 2


def test_waits_of_different_jobs_are_two_findings() -> None:
    scene = Scene()
    for job in ("01000000", "02000000"):
        driver = scene.driver(job_id=job)
        call, worker = scene.run("load", by=driver)
        worker.threads[0].line = 7
        driver.gets(call)

    assert len(scene.sample().second_sample().diagnose().findings) == 2
