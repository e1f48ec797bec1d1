"""Recorded snapshots of Ray's libraries: their parts have the right names, and idle parts cause no findings.

Each was saved by ``dstack snapshot -o`` from a program of a few lines, on the version of Ray in its name; only paths,
host names and command lines were changed. Only those of serve-coroutines, serve-queue and torch-mesh were saved by a
dstack that reads coroutines: in the others what depends on them is incomplete.
"""

from __future__ import annotations

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.ranks import ranks_of
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Diagnosis, Entry
from dstack.report.summaries import headline
from dstack.report.text import report_text
from tests.paths import RECORDED_CLUSTERS

ALL = sorted(path.name for path in RECORDED_CLUSTERS.iterdir())


def diagnosis_of(name: str) -> Diagnosis:
    return diagnose(load(RECORDED_CLUSTERS / name))


def versions_of(name: str) -> list[str]:
    return [file for file in ALL if file.startswith(f"{name}-ray-")]


def labels(diagnosis: Diagnosis) -> set[str]:
    return {describe(vertex) for vertex in diagnosis.vertices.values()}


@pytest.mark.parametrize("name", ALL)
def test_no_recorded_snapshot_has_a_deadlock(name: str) -> None:
    kinds = {finding.kind for finding in diagnosis_of(name).findings}

    assert kinds.isdisjoint({"deadlock", "orphaned", "infeasible"})


@pytest.mark.parametrize("name", ALL)
def test_a_record_contains_no_private_data(name: str) -> None:
    text = str(load(RECORDED_CLUSTERS / name))

    assert "/root" not in text
    assert "token" not in text.lower()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "serve-failed",
            "Serve deployment Model of app default is DEPLOY_FAILED: it should have 1 replica, 3 starts or health "
            "checks failed; Serve says: The deployment failed to start 3 times in a row.",
        ),
        ("serve-failed", "RuntimeError: licence server refused"),
        (
            "data-held-back",
            "Ray Data holds back tasks of operator ReadRange by its policy ResourceBudget: 2 tasks run, 332 blocks are "
            "queued before it, 64 after it, not consumed, it uses 544 B of the object store; its budget has 0 CPU",
        ),
        (
            "tune-limit",
            "Tune runs 2 trials, and 2 more are pending; it runs at most 2 at a time (max_concurrent_trials)",
        ),
    ],
)
def test_a_library_says_why_it_starts_no_more(name: str, sentence: str) -> None:
    (file,) = versions_of(name)

    assert sentence in " ".join(report_text(AnalysedSnapshot.of(load(RECORDED_CLUSTERS / file)), details=True).split())


@pytest.mark.parametrize("name", versions_of("serve-idle"))
def test_a_serve_application_without_requests_is_clear(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert diagnosis.verdict == "running"  # by one sample, its driver may run
    assert not diagnosis.incomplete
    assert "listen_for_change of Serve's controller" in labels(diagnosis)


@pytest.mark.parametrize("name", versions_of("serve-deadlock"))
def test_two_deployments_that_wait_for_each_other_are_found(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert {
        "request to Serve deployment Front of app shop",
        "request to Serve deployment Kitchen of app shop",
    } <= labels(diagnosis)
    assert diagnosis.incomplete
    assert not any("controller" in finding.summary for finding in diagnosis.findings)


@pytest.mark.parametrize("name", versions_of("serve-coroutines"))
def test_requests_to_deployments_are_followed_through_their_coroutines(name: str) -> None:
    diagnosis = diagnosis_of(name)
    steps = [step.text for finding in diagnosis.findings for step in finding.explanation]
    waits = {describe(vertex): vertex.wait.kind for vertex in diagnosis.vertices.values() if vertex.wait}

    assert not diagnosis.incomplete
    assert waits["request to Serve deployment Front of app shop"] == "await"
    assert waits["request to Serve deployment Kitchen of app shop"] == "await"
    assert any("Kitchen" in text and "Serve's wait for a free replica" in text for text in steps)


@pytest.mark.parametrize("name", versions_of("data-actors-hang"))
def test_workers_of_a_data_operator_are_named(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert "task of Data operator ReadRange->MapBatches(Model)" in labels(diagnosis)
    steps = [step.text for finding in diagnosis.findings for step in finding.explanation]
    assert any("(Data operator" in text and ", worker " in text for text in steps)


@pytest.mark.parametrize("name", [*versions_of("data-starting"), *versions_of("train-starting")])
def test_what_libraries_start_for_themselves_stands_behind_what_they_start_for_the_user(name: str) -> None:
    analysed = AnalysedSnapshot.of(load(RECORDED_CLUSTERS / name))

    (finding,) = analysed.diagnosis.findings
    report = report_text(analysed)
    assert "0 of 2 actors are created; 2 " in report
    assert "Data's statistics" not in report
    assert "Train's barrier" not in report
    (first, *_) = finding.diagram.rows
    assert isinstance(first, Entry)
    assert first.vertex in finding.members


@pytest.mark.parametrize("name", versions_of("empty"))
def test_a_cluster_without_a_driver_has_no_findings(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert (diagnosis.findings, diagnosis.coverage.workers.total) == ((), 0)
    assert not diagnosis.incomplete


@pytest.mark.parametrize("name", versions_of("data-tasks-hang"))
def test_tasks_of_a_data_operator_are_named(name: str) -> None:
    assert "Data operator ReadRange->MapBatches(never)" in labels(diagnosis_of(name))


@pytest.mark.parametrize("name", versions_of("train-barrier"))
def test_a_train_worker_at_the_barrier_of_a_report_is_named(name: str) -> None:
    assert {"run of Train's controller", "broadcast_from_rank_zero of Train's barrier"} <= labels(diagnosis_of(name))


@pytest.mark.parametrize("name", versions_of("tune-hang"))
def test_trials_are_named(name: str) -> None:
    assert "step of Tune trial" in labels(diagnosis_of(name))


@pytest.mark.parametrize("name", versions_of("queue"))
def test_only_the_awaited_empty_queue_is_named(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert diagnosis.verdict == "running"
    assert "get of ray.util.queue.Queue" in labels(diagnosis)
    assert len(diagnosis.findings) == 1


@pytest.mark.parametrize("name", versions_of("data-tasks-hang"))
def test_tasks_that_wait_outside_of_ray_are_named_where_there_is_no_finding(name: str) -> None:
    diagnosis = diagnosis_of(name)

    assert (diagnosis.verdict, diagnosis.findings) == ("running", ())
    operator = "Data operator ReadRange->MapBatches(never)"
    assert headline(diagnosis).endswith(f"4 × {operator} wait in threading.Event.wait (data1.py:8)")


@pytest.mark.parametrize("name", versions_of("torch-mesh"))
def test_the_ranks_of_a_device_mesh_and_the_labels_of_the_program_are_named(name: str) -> None:
    snapshot = load(RECORDED_CLUSTERS / name)
    analysed = AnalysedSnapshot.of(snapshot)

    found = {
        ranks.rank: ranks for one in snapshot.samples[0].workers if (ranks := ranks_of(one.process)).rank is not None
    }
    assert {rank: ranks.dimensions for rank, ranks in found.items()} == {
        0: (("tp", 0), ("dp", 0)),
        1: (("tp", 1), ("dp", 0)),
        2: (("tp", 0), ("dp", 1)),
        3: (("tp", 1), ("dp", 1)),
    }
    assert dict(found[3].labels) == {"stage": "late", "host": "h3"}
    assert "rank 3" in headline(analysed.diagnosis)
    assert "rank 3 (tp 1, dp 1, stage=late, host=h3)" in " ".join(report_text(analysed).split())


@pytest.mark.parametrize("name", versions_of("serve-queue"))
def test_a_request_that_is_queued_in_serve_waits_for_the_ongoing_one(name: str) -> None:
    diagnosis = diagnosis_of(name)

    (finding,) = diagnosis.findings
    (blocker,) = finding.final_blockers
    assert (finding.kind, diagnosis.incomplete) == ("running", False)
    assert {"request Kitchen.cook", "queued request Kitchen.cook"} <= labels(diagnosis)
    assert describe(diagnosis.vertices[blocker.vertex]) == "Kitchen.cook"
    assert "driver" in {describe(diagnosis.vertices[key]).split()[0] for key in finding.members}
