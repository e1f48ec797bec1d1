"""The critical path of recorded runs, and of random ones of which each part is known."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dstack.analysis.history.critical_path import CriticalPath, critical_path
from dstack.analysis.history.run_model import RunModel
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.history.what_if import WhatIf
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import TaskAttempt
from dstack.report.critical_path_text import path_in_words, predictions_in_words
from tests.paths import RECORDED_CLUSTERS, ROOT
from tests.unit.simulations.programs import US, Program, Run, critical_work, history_of, random_program, window_program
from tests.unit.support.histories import ACTOR, attempt, driver_attempt, index, task_id

CASES = ROOT / "docs" / "case-studies"


def path_of(history: HistoryIndex) -> CriticalPath:
    found = critical_path(RunModel(history))
    assert found is not None
    assert all(one.ended_at == following.began_at for one, following in pairwise(found.segments))
    return found


def path_in(name: str) -> CriticalPath:
    folder = RECORDED_CLUSTERS if "ray" in name else CASES
    history = AnalysedSnapshot.of(load(folder / f"{name}.json.gz")).history
    assert history is not None
    return path_of(history)


def kinds(*attempts: TaskAttempt) -> list[tuple[str, str, float]]:
    """The segments of the path: function, kind, and seconds to a hundredth."""
    found = path_of(index(driver_attempt(), *attempts))
    return [(one.function, one.kind, round(one.duration_s, 2)) for one in found.segments if one.duration_s > 0.01]


def of_whole_run(program: Program) -> Counter[str]:
    """The microseconds of the path by function, from the beginning to the last end."""
    model = RunModel(history_of(Run(program).to_end()))
    model.__dict__["iterations"] = None
    found = critical_path(model)
    assert found is not None
    spent: Counter[str] = Counter()
    for one in found.segments:
        spent[one.function] += round(one.duration_s / US)
    return spent


@pytest.mark.parametrize("seed", range(12))
def test_the_path_is_the_work_without_which_the_run_is_shorter(seed: int) -> None:
    program = random_program(seed)
    truth, found = critical_work(program), of_whole_run(program)

    assert {name: found[name] for name in truth} == pytest.approx(truth, abs=2_500)
    assert sum(found.values()) == pytest.approx(sum(truth.values()), rel=0.001)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12, 100))
def test_the_path_of_more_runs(seed: int) -> None:
    test_the_path_is_the_work_without_which_the_run_is_shorter(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_driver_that_submits_the_next_call_when_any_has_ended(seed: int) -> None:
    program = window_program(seed)
    truth, found = critical_work(program), of_whole_run(program)

    off = sum(abs(found[name] - truth.get(name, 0)) for name in found | Counter(truth))
    assert off / 2 < 0.1 * sum(truth.values())


@pytest.mark.parametrize(
    ("name", "function", "kind", "least"),
    [
        ("slow_leaves", "Archive.restore", "runs", 0.85),
        ("rlhf_roles", "Reward.score", "runs", 0.80),
        ("register_center", "Register.peers", "queued", 0.50),
        ("document-pipeline-ray-2.60", "analyse", "resources", 0.70),
        ("rollout_polling", "Engine.generate", "runs", 0.90),
    ],
)
def test_case_studies(name: str, function: str, kind: str, least: float) -> None:
    first = path_in(name).shares[0]

    assert (first.function, first.kind) == (function, kind)
    assert first.part > least


def test_iterations_of_a_driver_and_of_what_it_has_called() -> None:
    roles, polling = path_in("rlhf_roles"), path_in("rollout_polling")

    assert roles.iterations is not None
    assert polling.iterations is not None
    assert (roles.iterations.caller.name, len(roles.by_iteration)) == ("driver rlhf_roles.py", 7)
    assert polling.iterations.caller.name == "Trainer.fit"
    assert roles.step_s == pytest.approx(2.6, abs=0.1)
    assert sum(part.ended_at - part.began_at for part in roles.by_iteration) == pytest.approx(
        roles.ended_at - roles.began_at
    )


def test_behind_a_call_of_the_same_actor() -> None:
    first = attempt(
        1, "A.f", submitted=0, ready=0, sent=0, started=0, ended=2, worker=1, kind="ACTOR_TASK", actor_id=ACTOR
    )
    second = attempt(
        2, "A.g", submitted=1, ready=1, sent=1, started=2, ended=3, worker=1, kind="ACTOR_TASK", actor_id=ACTOR
    )

    assert kinds(first, second) == [("A.f", "runs", 1.0), ("A.f", "queued", 1.0), ("A.g", "runs", 1.0)]


def test_behind_a_task_that_held_the_resources() -> None:
    def task(number: int, name: str, started: float, ended: float) -> TaskAttempt:
        one = attempt(number, name, submitted=0, ready=0, sent=started, started=started, ended=ended, worker=number)
        return replace(one, required_resources={"CPU": 1.0})

    made = index(driver_attempt(), task(1, "f", 0, 2), task(2, "g", 2.001, 3))
    snapshot = made.index.snapshot
    one_cpu = replace(snapshot, nodes=(replace(snapshot.nodes[0], resources={"CPU": 1.0}),))
    made.index.snapshot = one_cpu

    found = path_of(made)

    assert [(one.function, one.kind) for one in found.segments if one.duration_s > 0.01] == [
        ("f", "resources"),
        ("g", "runs"),
    ]


def test_a_parent_is_explained_by_its_child() -> None:
    parent = attempt(1, "parent", submitted=0, ready=0, sent=0, started=1, ended=5, worker=1)
    child = attempt(2, "child", submitted=2, ready=2, sent=2, started=2.5, ended=4.5, worker=2, parent=task_id(1))

    assert kinds(parent, child) == [
        ("parent", "starts", 1.0),
        ("parent", "runs", 1.0),
        ("child", "starts", 0.5),
        ("child", "runs", 2.0),
        ("parent", "runs", 0.5),
    ]


def test_arguments_that_no_known_task_made() -> None:
    one = attempt(1, "f", submitted=1, ready=3, sent=3, started=3, ended=4, worker=1)

    assert kinds(one) == [("driver train.py", "runs", 1.0), ("f", "arguments", 2.0), ("f", "runs", 1.0)]


def test_a_retry_begins_after_the_attempt_before() -> None:
    failed = attempt(1, "f", submitted=0, ready=0, sent=0, started=0, ended=1, failed=True, worker=1)
    again = attempt(1, "f", ready=3, sent=3, started=3, ended=4, worker=2, retry=1)

    assert kinds(failed, again) == [("f", "runs", 1.0), ("f", "starts", 2.0), ("f", "runs", 1.0)]


def test_without_ended_calls_there_is_no_path() -> None:
    assert critical_path(RunModel(index(driver_attempt(), attempt(1, "f", submitted=0)))) is None


def test_of_several_jobs_it_is_the_one_that_ended_last() -> None:
    early = replace(attempt(1, "early", submitted=0, ready=0, started=0, ended=5, worker=1), job_id="02000000")
    late = attempt(2, "late", submitted=3, ready=3, started=3, ended=6, worker=2)

    assert kinds(early, late) == [("driver train.py", "runs", 3.0), ("late", "runs", 3.0)]


def test_changed_histories_never_fail() -> None:
    history = AnalysedSnapshot.of(load(CASES / "slow_leaves.json.gz")).history
    assert history is not None
    for seed in range(40):
        chance = random.Random(seed)
        changed = [_changed(one, chance) for one in history.history.attempts if chance.random() < 0.9]
        model = RunModel(HistoryIndex(history.index, replace(history.history, attempts=tuple(changed))))
        found = critical_path(model)
        if found is not None:
            assert all(one.ended_at == following.began_at for one, following in pairwise(found.segments))
            list(predictions_in_words(WhatIf(model, found)))
            path_in_words(found)


def _changed(one: TaskAttempt, chance: random.Random) -> TaskAttempt:
    """The same with other times and another parent, as no cluster reports them."""
    states = {
        name: at + chance.choice([0, 0, 1, -1, 50]) * chance.random()
        for name, at in one.states.items()
        if chance.random() < 0.9
    }
    parent = chance.choice([one.parent_task_id, one.parent_task_id, None, one.task_id])
    return replace(one, states=states, parent_task_id=parent, required_resources={"CPU": chance.choice([0.0, 1.0])})


def test_parents_that_form_a_cycle_end_the_search() -> None:
    one = attempt(1, "f", submitted=0, ready=0, started=0, ended=9, worker=1, parent=task_id(2))
    other = attempt(2, "g", submitted=0, ready=0, started=0, ended=9, worker=2, parent=task_id(1))

    assert critical_path(RunModel(index(one, other))) is None
