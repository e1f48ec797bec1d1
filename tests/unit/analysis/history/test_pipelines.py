"""Steps of pipelines, and the one that limits the throughput."""

from __future__ import annotations

import pytest

from dstack.analysis.history.pipelines import Pipeline, usual_maximum
from dstack.analysis.history.slices import running_slice
from dstack.analysis.views.timeline import Timeline
from tests.unit.support.histories import driver_attempt, index, pipeline


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
    (found,) = Timeline.of(index(driver_attempt(), *pipeline(runs))).pipelines
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
    (found,) = Timeline.of(index(driver_attempt(), *pipeline(runs))).pipelines

    assert found.limiting is None


def test_a_moment_of_more_calls_at_once_does_not_count() -> None:
    runs = [[(0, 10), (20, 20.1)], [(9.9, 20), (30, 30.1)]]
    slices = [
        one
        for attempt in index(*pipeline(runs)).attempts
        if attempt.task.name == "step_0" and (one := running_slice(attempt, 0.0))
    ]

    assert usual_maximum(slices) == 1
    assert usual_maximum([]) == 1
