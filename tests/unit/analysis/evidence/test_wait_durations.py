"""How long each wait has lasted, from both samples and from the times of tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.names import bounds, lasting, standing
from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Since, Vertex
from dstack.model.snapshot import Snapshot, TaskTimes
from dstack.model.vertex_keys import GroupKey
from dstack.words import duration, time_of_day
from tests.unit.scenes import Call, Scene, SceneProcess

TAKEN_AT = 1.7e9
"""Scenes are sampled from 0.0 to 0.5 s, and from 1.0 to 1.5 s."""


class Queued(Scene):
    """Actors that wait for each other, a driver behind them, and a queued call, with times of submission."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_, self.left, self.right = self.driver(), self.actor("Left"), self.actor("Right")
        self.ping = self.call(self.left, "ping", by=self.driver_)
        self.pong = self.call(self.right, "pong", by=self.left)
        self.back = self.call(self.left, "back", by=self.right)
        self.driver_.gets(self.ping)
        self.left.runs(self.ping).gets(self.pong)
        self.right.runs(self.pong).gets(self.back)
        self.times: dict[str, TaskTimes] = {}

    def submitted(self, call: Call, ago_s: float, attempt: int = 0, **states_ago_s: float) -> None:
        states = {state: TAKEN_AT - ago for state, ago in states_ago_s.items()}
        self.times[call.task.task_id] = TaskTimes(attempt=attempt, submitted_at=TAKEN_AT - ago_s, states=states)

    def timed(self) -> Snapshot:
        return replace(self.snapshot(), task_times=self.times)

    def since(self, waiter: SceneProcess | Call) -> Since | None:
        return bounds_of(diagnose(self.timed()).vertices[waiter.key].since)


def bounds_of(since: Since | None) -> Since | None:
    """The bounds alone."""
    return replace(since, began_at=None, is_close=False) if since else None


def test_a_wait_in_both_samples_lasted_from_one_to_the_other() -> None:
    scene = Queued()
    scene.sample().second_sample()

    assert scene.since(scene.left) == Since(at_least_s=0.5)


def test_one_sample_without_times_gives_no_bounds() -> None:
    scene = Queued()
    scene.sample()

    assert scene.since(scene.left) is None


def test_a_queued_call_waits_since_its_owner_sent_it() -> None:
    scene = Queued()
    scene.submitted(scene.back, 61.0, SUBMITTED_TO_WORKER=60.0)
    scene.sample().second_sample()

    assert scene.since(scene.back) == Since(at_least_s=61.0, at_most_s=61.5)


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_with_another_clock_only_the_samples_give_bounds(ahead_s: float) -> None:
    scene = Queued()
    scene.submitted(scene.back, 61.0 - ahead_s, SUBMITTED_TO_WORKER=60.0 - ahead_s)
    scene.nodes[0] = replace(scene.nodes[0], clock_ahead_s=ahead_s)
    scene.sample().second_sample()

    assert scene.since(scene.back) == Since(at_least_s=0.5)


def test_clocks_that_almost_agree_count_as_one() -> None:
    scene = Queued()
    scene.submitted(scene.back, 61.0, SUBMITTED_TO_WORKER=60.0)
    scene.nodes[0] = replace(scene.nodes[0], clock_ahead_s=1.5)
    scene.sample().second_sample()

    assert scene.since(scene.back) == Since(at_least_s=61.0, at_most_s=61.5)


def test_a_get_is_no_older_than_what_it_waits_for() -> None:
    scene = Queued()
    scene.submitted(scene.pong, 300.0)
    scene.sample().second_sample()

    assert scene.since(scene.left) == Since(at_least_s=0.5, at_most_s=301.5)


def test_a_get_is_no_older_than_the_run_of_its_own_task() -> None:
    scene = Queued()
    scene.submitted(scene.pong, 300.0)
    scene.submitted(scene.ping, 400.0, RUNNING=200.0)
    scene.sample()

    assert scene.since(scene.left) == Since(at_most_s=200.5)


def test_the_first_submission_bounds_the_waits_for_a_second_attempt() -> None:
    scene = Queued()
    scene.submitted(scene.pong, 300.0, attempt=1, PENDING_ARGS_AVAIL=10.0)
    scene.sample()

    assert scene.since(scene.left) == Since(at_most_s=300.5)


def test_times_of_an_earlier_attempt_give_no_bounds() -> None:
    scene = Queued()
    scene.submitted(scene.back, 61.0, SUBMITTED_TO_WORKER=60.0)
    scene.back.becomes(attempt=1)
    scene.sample()

    assert scene.since(scene.back) is None


def test_a_placement_group_waits_since_it_was_asked_for() -> None:
    scene = Scene()
    scene.driver()
    group = scene.group("PENDING", scheduling_state="NO_RESOURCES", requested_at=TAKEN_AT - 30.0)
    scene.sample()

    since = scene.diagnose().vertices[GroupKey(group.placement_group_id)].since

    assert bounds_of(since) == Since(at_least_s=30.0, at_most_s=30.5)


def test_clocks_that_disagree_make_nothing_negative() -> None:
    scene = Queued()
    scene.submitted(scene.pong, -100.0)
    scene.submitted(scene.back, -100.0, SUBMITTED_TO_WORKER=-100.0)
    scene.sample().second_sample()

    assert scene.since(scene.left) == Since(at_least_s=0.5, at_most_s=0.5)
    assert scene.since(scene.back) == Since(at_least_s=0.5, at_most_s=0.5)


def test_a_wait_with_a_timeout_has_no_bounds() -> None:
    scene = Queued()
    scene.submitted(scene.ping, 300.0)
    scene.driver_.gets(scene.ping, timeout_s=1.0)
    scene.sample().second_sample()

    assert scene.since(scene.driver_) is None


def test_a_deadlock_exists_since_the_last_of_its_waits_began() -> None:
    scene = Queued()
    scene.submitted(scene.ping, 500.0, RUNNING=400.0)
    scene.submitted(scene.pong, 300.0, RUNNING=299.0)
    scene.submitted(scene.back, 61.0, SUBMITTED_TO_WORKER=60.0)
    scene.sample().second_sample()

    (finding,) = diagnose(scene.timed()).findings

    assert bounds_of(finding.since) == Since(at_least_s=0.5, at_most_s=61.5)
    assert finding.since
    assert finding.since.is_close
    assert standing(finding.since) == f"since {time_of_day(TAKEN_AT - 60.0)} (1 min 2 s)"
    assert any(
        step.text.endswith("is queued behind Left.ping of actor 00000000, for 1 min 1 s")
        for step in finding.explanation
    )


def test_a_run_bounds_its_wait_only_at_the_earliest() -> None:
    scene = Queued()
    scene.submitted(scene.ping, 500.0, RUNNING=400.0)
    scene.left.is_in("threading.Event.wait", "0x1")
    scene.sample().second_sample()

    since = diagnose(scene.timed()).vertices[scene.left.key].since

    assert standing(since) == f"since {time_of_day(TAKEN_AT - 400.0)} at the earliest (6 min 42 s)"
    assert standing(Since(at_least_s=1.1)) == "seen for 1.1 s"
    assert standing(Since(at_least_s=60.0, at_most_s=61.0, began_at=TAKEN_AT)) == (
        f"since {time_of_day(TAKEN_AT)} (1 min 1 s)"
    )
    assert standing(None) == standing(Since()) == ""


def test_a_task_that_does_not_wait_has_run_since_it_began() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    driver.gets(call)
    snapshot = scene.sample().second_sample().snapshot()
    times = {call.task.task_id: TaskTimes(states={"RUNNING": TAKEN_AT - 40.0})}

    since = diagnose(replace(snapshot, task_times=times)).vertices[worker.key].since

    assert bounds_of(since) == Since(at_least_s=40.0, at_most_s=40.5)


def test_task_times_are_requested_first_for_running_tasks_that_wait() -> None:
    scene = Queued()
    for _ in range(10):
        scene.call(scene.left, "extra", by=scene.driver_)

    tasks = plan_readings(scene.snapshot()).tasks

    assert tasks[:3] == [call.task.task_id for call in (scene.ping, scene.pong, scene.back)]
    assert len(tasks) == 13


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.booleans())
def test_bounds_are_never_negative_and_never_cross(ago: list[float], is_second: bool) -> None:
    scene = Queued()
    for call, seconds in zip((scene.ping, scene.pong, scene.back), ago, strict=True):
        scene.submitted(call, seconds, RUNNING=seconds - 1.0, SUBMITTED_TO_WORKER=seconds)
    scene.sample()
    if is_second:
        scene.second_sample()

    vertices: list[Vertex] = list(diagnose(scene.timed()).vertices.values())

    for since in filter(None, (vertex.since for vertex in vertices)):
        assert since.at_least_s is None or since.at_least_s >= 0
        assert since.at_most_s is None or since.at_most_s >= (since.at_least_s or 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (0.42, "0.4 s"),
        (12.3, "12 s"),
        (59.9, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (3 * 86_400 + 4 * 3600, "3 d 4 h"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("at_least_s", "at_most_s", "text"),
    [
        (None, None, ""),
        (0.01, None, ""),
        (0.4, None, "for at least 0.4 s"),
        (None, 300.0, "for at most 5 min"),
        (0.4, 300.0, "for 0.4 s to 5 min"),
        (200.0, 201.0, "for 3 min 20 s"),
    ],
)
def test_bounds_in_words(at_least_s: float | None, at_most_s: float | None, text: str) -> None:
    assert lasting(Since(at_least_s=at_least_s, at_most_s=at_most_s)) == text


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (None, ""),
        (Since(at_least_s=0.4), "≥ 0.4 s"),
        (Since(at_most_s=300.0), "≤ 5 min"),
        (Since(at_least_s=0.4, at_most_s=300.0), "0.4 s to 5 min"),
        (Since(at_least_s=199.0, at_most_s=200.0), "3 min 19 s"),
    ],
)
def test_bounds_in_short(since: Since | None, expected: str) -> None:
    assert bounds(since) == expected
