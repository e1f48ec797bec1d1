"""Steps of pipelines, and the one that limits the throughput."""

from __future__ import annotations

import pytest

from dstack.analysis.history.pipelines import Pipeline, usual_maximum
from dstack.analysis.history.slices import running_slice
from dstack.analysis.views.timeline import Timeline
from dstack.model.snapshot import TaskAttempt
from tests.unit.support.histories import attempt, driver_attempt, index, pipeline


def of_steps(lasting: tuple[float, ...], items: int = 10) -> Pipeline:
    """The pipeline of items that wait for one worker for each step."""
    free = [0.0] * len(lasting)
    runs = []
    for _ in range(items):
        steps, at = [], 0.001
        for step, lasts in enumerate(lasting):
            began = max(free[step], at + 0.01)
            at = free[step] = began + lasts
            steps.append((began, at))
        runs.append(steps)
    (found,) = Timeline(index(driver_attempt(), *pipeline(runs))).pipelines
    return found


@pytest.mark.parametrize(
    ("lasting", "limiting"),
    [((0.1, 1.0, 0.1), "step_1"), ((1.0, 0.1, 0.1), "step_0"), ((0.1, 0.1, 1.0), "step_2"), ((0.5, 0.5), None)],
)
def test_the_busiest_step_limits(lasting: tuple[float, ...], limiting: str | None) -> None:
    found = of_steps(lasting)

    assert (found.limiting.name if found.limiting else None) == limiting
    assert [step.name for step in found.steps] == [f"step_{number}" for number in range(len(lasting))]
    assert len(found.chains) == 10


def test_the_figures_of_a_step() -> None:
    _, step = of_steps((0.1, 1.0), items=4).steps

    assert (step.attempts, step.at_once) == (4, 1)
    assert step.mean_s == pytest.approx(1.0)
    assert step.longest_s == pytest.approx(1.0)
    assert step.mean_wait_s == pytest.approx((0.01 + 0.91 + 1.81 + 2.71) / 4, abs=0.05)
    assert step.longest_wait_s == pytest.approx(2.71, abs=0.1)
    assert step.utilisation == pytest.approx(4.0 / 4.12, abs=0.02)


def test_a_pipeline_that_is_hardly_in_use_is_limited_by_no_step() -> None:
    runs = [[(item * 10, item * 10 + 1), (item * 10 + 2, item * 10 + 2.2)] for item in range(5)]
    (found,) = Timeline(index(driver_attempt(), *pipeline(runs))).pipelines

    assert found.limiting is None


def test_a_moment_of_more_calls_at_once_does_not_count() -> None:
    runs = [[(0.0, 10.0), (20.0, 20.1)], [(9.9, 20.0), (30.0, 30.1)]]
    slices = [
        one
        for attempt in index(*pipeline(runs)).attempts
        if attempt.task.name == "step_0" and (one := running_slice(attempt, 0.0))
    ]

    assert usual_maximum(slices) == 1
    assert usual_maximum([]) == 1


def other_pipeline(items: int) -> list[TaskAttempt]:
    """Items through step_0 and other, long after those of :data:`RUNS`."""
    found: list[TaskAttempt] = []
    for item in range(items):
        at = 100.0 + item
        first = attempt(900 + 2 * item, "step_0", submitted=50, ready=50, started=at, ended=at + 0.2, worker=1)
        found += [first, attempt(901 + 2 * item, "other", submitted=50, ready=at + 0.2001, started=at + 0.3, worker=9)]
    return found


RUNS = [[(item, item + 0.4), (item + 0.5, item + 1.1), (item + 1.2, item + 1.3)] for item in range(1, 6)]


def test_pipelines_are_the_paths_of_items() -> None:
    found = Timeline(index(driver_attempt(), *pipeline(RUNS), *other_pipeline(4), asked=200.0)).pipelines

    assert [([step.name for step in one.steps], len(one.chains), len(one.parts)) for one in found] == [
        (["step_0", "step_1", "step_2"], 5, 0),
        (["step_0", "other"], 4, 0),
    ]


def test_an_item_that_has_not_passed_all_steps_is_a_part() -> None:
    last = pipeline(RUNS)[-1]
    found = Timeline(index(driver_attempt(), *pipeline(RUNS)[:-1])).pipelines

    assert last.name == "step_2"
    assert [(len(one.chains), len(one.parts)) for one in found] == [(4, 1)]
