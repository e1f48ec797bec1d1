"""Names of vertices in sentences."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.names import find_job, nodes, ranks_in_words
from dstack.cli import main
from dstack.errors import UsageError
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Job, Node, Snapshot
from tests.unit.scenes import JOB, Scene, SceneProcess


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), ""),
        ((3,), "rank 3"),
        ((0, 1), "ranks 0-1"),
        ((5, 0, 2, 1, 1), "ranks 0-2, 5"),
        (range(1024), "ranks 0-1023"),
        (range(0, 64, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 24 more"),
    ],
)
def test_consecutive_ranks_are_one_range_and_long_lists_are_cut(ranks: Iterable[int], words: str) -> None:
    assert ranks_in_words(ranks) == words


def test_names_of_nodes_with_one_address_have_their_ids() -> None:
    known = [
        Node(node_id=f"{letter * 56}", ip=ip) for letter, ip in (("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "::1"))
    ]

    assert list(nodes(known).values()) == ["node 10.0.0.1 (aaaaaaaa)", "node 10.0.0.1 (bbbbbbbb)", "node ::1"]


OTHER = "02000000"
JOBS = (
    Job(job_id=JOB, entrypoint="python -u /srv/train.py --fast", submission_id="raysubmit_Ab1"),
    Job(job_id=OTHER, entrypoint="python serve.py"),
    Job(job_id="0a000000", entrypoint="python serve.py", is_dead=True),
)


def two_jobs() -> Snapshot:
    """A driver of one job waits for a task that runs, and a driver of another job for an infeasible task."""
    scene = Scene()
    first, second = scene.driver(), scene.driver(job_id=OTHER)
    call, _ = scene.run("work", by=first)
    first.gets(call)
    second.gets(scene.task("big", by=second, state="PENDING_NODE_ASSIGNMENT", required_resources={"TPU": 1.0}))
    return replace(scene.snapshot(), jobs=JOBS)


def across() -> Snapshot:
    """Actors of two jobs that wait for each other."""
    scene = Scene()
    driver = scene.driver()
    left, right = scene.actor("Left"), scene.actor("Right", job_id=OTHER)
    cross(scene, driver, left, right)
    return replace(scene.snapshot(), jobs=JOBS)


def cross(scene: Scene, driver: SceneProcess, left: SceneProcess, right: SceneProcess) -> None:
    left.runs(scene.call(left, "run", by=driver))
    right.runs(scene.call(right, "run", by=driver))
    left.gets(scene.call(right, "step", by=left))
    right.gets(scene.call(left, "step", by=right))


@pytest.mark.parametrize("wanted", [JOB, "01", "raysubmit_Ab1", "train.py", "python -u /srv/train.py --fast"])
def test_a_job_is_found_by_its_id_an_id_prefix_its_submission_or_its_script(wanted: str) -> None:
    assert find_job(two_jobs(), wanted) == JOB


def test_an_ambiguous_job_name_means_the_running_job() -> None:
    assert find_job(two_jobs(), "serve.py") == OTHER


@pytest.mark.parametrize("wanted", ["0", "3", "", "other.py"])
def test_an_unknown_or_ambiguous_job_is_a_usage_error_that_lists_the_jobs(wanted: str) -> None:
    with pytest.raises(UsageError) as error:
        find_job(two_jobs(), wanted)

    assert f"{JOB} (train.py), {OTHER} (serve.py)" in (error.value.remedy or "")


def test_only_findings_of_the_job_are_reported() -> None:
    snapshot = two_jobs()

    whole, first, second = diagnose(snapshot), diagnose(snapshot, job=JOB), diagnose(snapshot, job=OTHER)

    assert [finding.kind for finding in whole.findings] == ["infeasible", "running"]
    assert (first.verdict, [finding.kind for finding in first.findings]) == ("running", ["running"])
    assert (second.verdict, [finding.kind for finding in second.findings]) == ("hang", ["infeasible"])


def test_a_deadlock_across_jobs_is_reported_for_both() -> None:
    snapshot = across()

    for job in (JOB, OTHER):
        (finding,) = diagnose(snapshot, job=job).findings
        assert finding.kind == "deadlock"
        assert finding.jobs == (JOB, OTHER)
        assert finding.summary.startswith(f"Left.run and Right.run wait for each other, across jobs {JOB} and {OTHER}")


def test_the_command_accepts_a_job(tmp_path: object) -> None:
    file = f"{tmp_path}/snapshot.json"
    save(two_jobs(), file)
    run = CliRunner().invoke

    assert run(main, ["check", file]).exit_code == 1
    assert run(main, ["check", file, "--job", "train.py"]).exit_code == 0
    assert "job 01000000 only" in " ".join(run(main, ["show", file, "--job", "01"]).stdout.split())
    unknown = run(main, ["show", file, "--job", "07000000"])
    assert (unknown.exit_code, "Known jobs: 01000000 (train.py)" in unknown.stderr) == (2, True)
