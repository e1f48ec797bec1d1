"""Predictions: against another simulation of random programs, and against the measured fixes of the case studies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dstack.analysis.history.critical_path import critical_path
from dstack.analysis.history.run_model import RunModel, slots_of
from dstack.analysis.history.simulation import ActorCount, Change, Faster, ResourceTotal, Without
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.history.what_if import CHANGE_FORMS, EXISTING_NAMES, WhatIf, changes_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import UsageError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import TaskAttempt
from tests.paths import RECORDED_CLUSTERS, ROOT
from tests.unit.simulations.programs import US, Program, Run, history_of, random_program, window_program
from tests.unit.support.histories import ACTOR, NOW, attempt, driver_attempt, index

CASES = ROOT / "docs" / "case-studies"
LATE_US = 1_000


def what_if_of(history: HistoryIndex, *, of_whole_run: bool = False) -> WhatIf:
    model = RunModel(history)
    if of_whole_run:
        model.__dict__["iterations"] = None
    path = critical_path(model)
    assert path is not None
    return WhatIf(model, path)


def what_if_in(name: str) -> WhatIf:
    folder = RECORDED_CLUSTERS if "ray" in name else CASES
    history = AnalysedSnapshot.of(load(folder / f"{name}.json.gz")).history
    assert history is not None
    return what_if_of(history)


def seconds(what_if: WhatIf, *changes: Change) -> float:
    found = what_if.predict(changes)
    assert found is not None
    return found.seconds


def changed_runs(program: Program, pools: int) -> list[tuple[Change, Run]]:
    """The program with each function twice as fast, twice the CPUs, and twice the actors."""
    names = sorted({call.function for call in program.calls})
    runs: list[tuple[Change, Run]] = [(Faster(name, 2.0), Run(program.changed({name: 2.0}))) for name in names]
    runs.append((ResourceTotal("CPU", 2.0 * program.cpus), Run(program.changed({}, cpus=2 * program.cpus))))
    if pools:
        runs.append((ActorCount("Pool", 2 * pools), Run(program, is_pooled=2 * pools)))
    return runs


@pytest.mark.parametrize("seed", range(12))
def test_predictions_agree_with_another_simulation(seed: int) -> None:
    program = random_program(seed, noticed_late=LATE_US)
    what_if = what_if_of(history_of(Run(program).to_end()), of_whole_run=True)

    assert what_if.error == pytest.approx(0.0, abs=0.01)
    for change, run in changed_runs(program, what_if.model.actors_of("Pool")):
        assert seconds(what_if, change) == pytest.approx(run.to_end().now * US, rel=0.05), change


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12, 100))
def test_predictions_of_more_programs(seed: int) -> None:
    program = random_program(seed, noticed_late=LATE_US)
    what_if = what_if_of(history_of(Run(program).to_end()), of_whole_run=True)

    for change, run in changed_runs(program, what_if.model.actors_of("Pool")):
        assert seconds(what_if, change) == pytest.approx(run.to_end().now * US, rel=0.2), change


@pytest.mark.parametrize("seed", range(8))
def test_a_driver_that_submits_the_next_call_when_any_has_ended(seed: int) -> None:
    program = window_program(seed)
    what_if = what_if_of(history_of(Run(program).to_end()), of_whole_run=True)

    for change, run in changed_runs(program, 0):
        assert seconds(what_if, change) == pytest.approx(run.to_end().now * US, rel=0.1), change


@pytest.mark.parametrize(
    ("name", "change", "measured_s"),
    [
        ("slow_leaves", "Archive.restore=100x", 1.9),
        ("rlhf_roles", "Reward.score=300x", 0.41),
        ("register_center", "Register.peers=1000x", 0.22),
        ("document-pipeline-ray-2.60", "analyse without site_a", 9.7),
        ("rollout_polling", "Buffer.size=10x", 0.81),
    ],
)
def test_the_fixes_of_the_case_studies(name: str, change: str, measured_s: float) -> None:
    """The measured times are medians of the programs with their fixes, on an idle machine with two CPUs."""
    what_if = what_if_in(name)

    assert seconds(what_if, *changes_of(change, what_if.model)) == pytest.approx(measured_s, rel=0.2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slow_leaves", [Faster("Archive.restore", 2.0)]),
        ("rlhf_roles", [Faster("Reward.score", 2.0)]),
        ("register_center", [Faster("Register.peers", 2.0), ActorCount("Register", 2)]),
        ("rollout_polling", [Faster("Engine.generate", 2.0)]),
    ],
)
def test_proposals(name: str, expected: Sequence[Change]) -> None:
    assert [one.changes[0] for one in what_if_in(name).proposals] == expected


def test_a_task_that_is_pinned_to_a_node_is_proposed_without_its_place() -> None:
    found = [one.changes[0] for one in what_if_in("document-pipeline-ray-2.60").proposals]

    assert Without("analyse", "site_a") in found
    assert ResourceTotal("GPU", 4.0) in found


def test_several_changes_at_once() -> None:
    what_if = what_if_in("register_center")
    both = changes_of("Register.peers=2x, Register=2 actors", what_if.model)

    assert both == [Faster("Register.peers", 2.0), ActorCount("Register", 2)]
    assert seconds(what_if, *both) < min(seconds(what_if, one) for one in both)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("analyse=1.5x", Faster("analyse", 1.5)),
        ("GPU=3", ResourceTotal("GPU", 3.0)),
        ("analyse without site_a", Without("analyse", "site_a")),
    ],
)
def test_changes_in_text(text: str, change: Change) -> None:
    assert changes_of(text, what_if_in("document-pipeline-ray-2.60").model) == [change]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("make it fast", CHANGE_FORMS),
        ("analyse=0x", EXISTING_NAMES),
        ("unknown=2x", EXISTING_NAMES),
        ("Register=2 actors", EXISTING_NAMES),
        ("TPU=2", EXISTING_NAMES),
        ("unknown without site_a", EXISTING_NAMES),
    ],
)
def test_changes_that_are_not_understood(text: str, remedy: str) -> None:
    model = what_if_in("document-pipeline-ray-2.60").model

    with pytest.raises(UsageError) as raised:
        changes_of(text, model)
    assert raised.value.remedy == remedy


def actor_call(number: int, started: float | None, ended: float) -> TaskAttempt:
    is_failed = started is None
    return attempt(
        number,
        "A.f",
        submitted=0,
        ready=0,
        sent=0,
        started=started,
        ended=ended,
        failed=is_failed,
        worker=1,
        kind="ACTOR_TASK",
        actor_id=ACTOR,
    )


def test_calls_that_failed_before_they_began_take_no_slot() -> None:
    ran = (actor_call(1, 0, 2), actor_call(2, 2, 4))
    model = RunModel(index(driver_attempt(), *ran, actor_call(3, None, 5), actor_call(4, None, 5)))

    assert slots_of(model.calls) == 1
    assert [one.started_at - NOW for one in model.calls] == pytest.approx([0, 2, 5, 5])


def test_nothing_is_predicted_if_the_simulation_differs_from_the_run() -> None:
    what_if = what_if_in("rlhf_roles")
    what_if.__dict__["simulated_s"] = 1.2 * what_if.recorded_s

    assert not what_if.is_trusted
    assert what_if.predict([Faster("Reward.score", 2.0)]) is None
    assert what_if.proposals == []
