"""The critical path and predictions as text."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from rich.console import Console

from dstack.analysis.history.critical_path import CriticalPath
from dstack.analysis.history.simulation import ActorCount, Change, Faster, ResourceTotal, Without
from dstack.analysis.history.what_if import WhatIf
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import main
from dstack.files.snapshot_file import load
from dstack.report.critical_path_text import (
    change_in_words,
    longest_in_words,
    path_in_words,
    path_title,
    predictions_in_words,
    print_critical_path,
)
from tests.paths import RECORDED_CLUSTERS, ROOT

CASES = ROOT / "docs" / "case-studies"


def found_in(name: str) -> tuple[CriticalPath, WhatIf]:
    folder = RECORDED_CLUSTERS if "ray" in name else CASES
    timeline = AnalysedSnapshot.of(load(folder / f"{name}.json.gz")).timeline
    assert timeline is not None
    assert timeline.critical_path is not None
    return timeline.critical_path, WhatIf(timeline.run, timeline.critical_path)


def test_the_path_with_proposals() -> None:
    path, what_if = found_in("register_center")
    console = Console(width=100, highlight=False, color_system=None)
    with console.capture() as captured:
        print_critical_path(console, path, what_if, ())

    assert [line.split() for line in captured.get().splitlines()] == [
        line.split()
        for line in (
            "Critical path of an iteration of driver register_center.py, 2.2 s in the median of 8:",
            "function          share    time  what",
            "Register.peers      58%   1.4 s  runs; calls queue for its actor",
            "Register.peers      23%  553 ms  runs",
            "Rollout.__init__     8%  188 ms  starts",
            "Rollout.generate     5%  110 ms  runs",
            "Trainer.update       4%  107 ms  runs",
            "The longest one took 3.5 s, of which 1.5 s are Rollout.__init__.",
            "With a change, by a simulation of this run:",
            "  Register.peers twice as fast: 1.2 s instead of 2.2 s",
            "  2 actors of Register instead of 1: 1.2 s instead of 2.2 s",
        )
    ]


def test_the_path_of_a_run_without_iterations() -> None:
    path, _ = found_in("document_pipeline")

    assert path_title(path) == "Critical path of driver document_pipeline.py, 40 s"
    assert longest_in_words(path) == ""
    assert path_in_words(path).startswith(f"{path_title(path)}: analyse 69% (runs; tasks need its resources), ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Faster("analyse", 1.5), "analyse 1.5 times as fast"),
        (ActorCount("Pool", 1), "1 actor of Pool instead of 0"),
        (ResourceTotal("GPU", 4.0), "4 GPU instead of 2"),
        (Without("analyse", "site_a"), "analyse not asking for site_a"),
    ],
)
def test_changes_in_words(change: Change, words: str) -> None:
    _, what_if = found_in("document-pipeline-ray-2.60")

    assert change_in_words(change, what_if) == words


@pytest.mark.parametrize(
    ("simulated", "reason"),
    [
        (4.0, "Nothing is predicted: without a change, the simulation takes 4.0 s, and the run took 2.6 s."),
        (None, "Nothing is predicted: the simulation of the run does not come to its end."),
    ],
)
def test_nothing_is_predicted_by_a_simulation_unlike_the_run(simulated: float | None, reason: str) -> None:
    _, what_if = found_in("rlhf_roles")
    what_if.__dict__["simulated_s"] = simulated

    assert list(predictions_in_words(what_if)) == []
    assert list(predictions_in_words(what_if, [[Faster("Reward.score", 2.0)]])) == [reason]


def test_questions_on_the_command_line() -> None:
    file = str(CASES / "rlhf_roles.json.gz")
    questions = ("--what-if", "Reward.score=2x, Actor.generate=2x", "--what-if", "Reward=2 actors")
    printed = CliRunner().invoke(main, ["timeline", file, *questions])

    assert printed.exit_code == 0
    assert "  Reward.score twice as fast and Actor.generate twice as fast: 1.4 s instead of 2.6 s" in printed.output
    assert "  2 actors of Reward instead of 1: 2.6 s instead of 2.6 s" in printed.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--what-if", "faster please"), "The change is not understood."),
        (("--what-if", "unknown=2x"), "The change is of something that the run does not have."),
        (("--what-if", "CPU=4", "-o", "trace.json"), "--what-if cannot be combined with -o."),
    ],
)
def test_questions_that_cannot_be_answered(options: tuple[str, ...], message: str) -> None:
    failed = CliRunner().invoke(main, ["timeline", str(CASES / "rlhf_roles.json.gz"), *options])

    assert failed.exit_code == 2
    assert message in failed.output


def test_a_history_in_which_nothing_has_ended_cannot_be_asked() -> None:
    failed = CliRunner().invoke(
        main, ["timeline", str(RECORDED_CLUSTERS / "empty-ray-2.60.json.gz"), "--what-if", "CPU=4"]
    )

    assert failed.exit_code == 2
