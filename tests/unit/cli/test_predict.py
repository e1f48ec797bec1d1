"""The command ``predict`` on saved snapshots: text, JSON, exit codes and wrong options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import main
from dstack.files.snapshot_file import load, save
from dstack.report.prediction_text import NOTHING, PredictionDocument
from tests.unit.analysis.predict.test_predict import TRIALS
from tests.unit.scenes.runs import Run


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["predict", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A run of two tasks that hold a GPU each, one after the other, while each waits for another one."""
    seen = Run(tmp_path, TRIALS, GPU=2)
    for at in (0.1, 0.4):
        trial = seen.call("trial", 0.1, at + 0.2, began=at, GPU=1.0)
        seen.call("evaluate", at + 0.05, at + 0.1, by=trial, GPU=1.0)
    path = tmp_path / "run.json"
    save(seen.snapshot(), path)
    return str(path)


def test_a_possible_deadlock_has_its_lines_and_a_fix(file: str) -> None:
    done = run(file)

    assert done.exit_code == 0
    assert done.stdout.startswith("POSSIBLE DEADLOCK  2 calls of trial wait for each other for ever")
    assert "app.py:10  return ray.get(evaluate.remote())" in done.stdout
    assert "Fix: Do not hold GPU in trial while waiting for evaluate" in done.stdout


def test_the_exit_code_is_1_on_request(file: str) -> None:
    assert run(file, "--error").exit_code == 1


def test_json_is_a_versioned_document(file: str) -> None:
    document = msgspec.json.decode(run(file, "--json").stdout, type=PredictionDocument)

    assert document["schema"] == "dstack.predict/1"
    assert [len(one.members) for one in document["prediction"].possible] == [4]


def test_reports_of_the_snapshot_name_it_and_its_verdict_stays(file: str) -> None:
    shown = CliRunner().invoke(main, ["show", file])
    checked = CliRunner().invoke(main, ["check", file, "--json"])

    assert "Possible: 2 calls of trial wait for each other for ever" in shown.stdout
    assert len(msgspec.json.decode(checked.stdout)["possible_deadlocks"]) == 1
    assert checked.exit_code in (0, 4)


def test_details_and_the_page_have_the_whole_of_it(file: str) -> None:
    from dstack.report.page.pages import report_page

    details = CliRunner().invoke(main, ["show", file, "--details"]).stdout
    page = report_page(AnalysedSnapshot.of(load(file))).decode()

    for text in (details, page):
        assert "POSSIBLE DEADLOCK  2 calls of trial" in text
        assert "\nFix: Do not hold GPU in trial" in text


def test_without_the_source_only_samples_count_and_it_says_so(file: str, tmp_path: Path) -> None:
    unread = tmp_path / "unread.json"
    save(replace(load(file), outlines=()), unread)

    done = run(str(unread), "--error")
    assert (done.exit_code, NOTHING in done.stdout) == (0, True)
    assert "The source of trial was not read" in done.stdout


def test_a_file_and_an_address_are_a_usage_error(file: str) -> None:
    done = run(file, "--address", "10.0.0.1:6379")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "FILE cannot be combined with --address" in done.stderr


# Several files


@pytest.fixture
def without_source(file: str, tmp_path: Path) -> str:
    """The same run, as a snapshot shows it after its driver has ended."""
    path = tmp_path / "after.json"
    save(replace(load(file), outlines=(), taken_at=load(file).taken_at + 60), path)
    return str(path)


def test_the_source_in_one_file_counts_for_all_of_the_cluster(file: str, without_source: str, tmp_path: Path) -> None:
    before = load(file)
    assert before.history is not None
    early = tmp_path / "before.json"
    save(replace(before, history=replace(before.history, attempts=())), early)

    assert NOTHING in run(str(early)).stdout
    assert NOTHING in run(without_source).stdout
    assert run(str(early), without_source).stdout.startswith("POSSIBLE DEADLOCK  2 calls of trial")


def test_a_wait_that_one_file_shows_counts_for_all_even_if_it_has_no_history(
    file: str, without_source: str, tmp_path: Path
) -> None:
    snapshot = load(file)
    assert snapshot.history is not None
    calls = [one for one in snapshot.history.attempts if one.name == "evaluate"]
    pairs = tuple((one.parent_task_id or "", one.task_id) for one in calls)
    showing = tmp_path / "showing.json"
    save(replace(snapshot, history=None, outlines=(), earlier_waits=pairs), showing)

    done = run(str(showing), without_source)

    assert done.stdout.startswith("POSSIBLE DEADLOCK  2 calls of trial")
    refused = run(str(showing))
    assert (refused.exit_code, "has no history of tasks" in refused.stderr) == (2, True)


def test_a_directory_is_one_run_and_says_each_deadlock_once(file: str, without_source: str) -> None:
    assert run(str(Path(file).parent)).stdout == run(file).stdout


def test_files_of_other_clusters_are_told_apart(file: str, without_source: str) -> None:
    snapshot = load(file)
    other = Path(file).with_name("other.json")
    save(replace(snapshot, nodes=(replace(snapshot.nodes[0], node_id="n2"),), outlines=()), other)

    sections = run(file, without_source, str(other)).stdout.split(":\n")

    assert sections[0] == f"{without_source} and {file}"
    assert sections[1].startswith("POSSIBLE DEADLOCK")
    assert sections[1].endswith(str(other))
    assert sections[2].startswith(NOTHING)
    assert run(file, without_source, str(other), "--json").stdout.count('"dstack.predict/1"') == 2


def test_an_unreadable_file_is_named_and_left_out(file: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")

    done = run(str(tmp_path))

    assert done.stdout.startswith("POSSIBLE DEADLOCK")
    assert "Note: left out: " in done.stderr


def test_recordings_alone_are_a_usage_error(tmp_path: Path) -> None:
    recording = next((Path(__file__).parents[2] / "recorded_profiles").glob("*.json.gz"))

    done = run(str(recording))

    assert (done.exit_code, "A prediction needs a snapshot" in done.stderr) == (2, True)
