"""Phases as slices, and lanes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.slices import (
    FAILED,
    FINISHED,
    NOTHING,
    PHASES,
    QUEUE,
    Bar,
    Bars,
    Levels,
    Slice,
    in_lanes,
    overlap_s,
    running_slice,
    slices_of,
    trimmed,
)
from dstack.analysis.history.task_index import Attempt
from dstack.model.snapshot import TaskAttempt
from tests.unit.support.histories import ACTOR, NOW, attempt, index

ANY_TIME = st.none() | st.floats(0.0, 50.0)
TASK = attempt(1, "step", submitted=0.0)


def only(task: TaskAttempt) -> Attempt:
    (one,) = index(task).attempts
    return one


def phases(task: TaskAttempt, asked: float = 100.0) -> list[tuple[str, float, float, bool]]:
    found = slices_of(only(task), NOW + asked)
    return [(one.phase, round(one.began_at - NOW, 3), round(one.ended_at - NOW, 3), one.is_open) for one in found]


def test_a_task_that_has_ended() -> None:
    assert phases(attempt(1, "step", submitted=1, ready=2, sent=3, started=4, ended=5, worker=1)) == [
        ("arguments", 1, 2, False),
        ("resources", 2, 3, False),
        ("sent", 3, 4, False),
        ("running", 4, 5, False),
    ]


def test_a_call_is_queued_as_soon_as_it_is_sent() -> None:
    call = attempt(1, "A.f", submitted=1, ready=2, sent=3, arrived=6, started=7, kind="ACTOR_TASK", actor_id=ACTOR)

    assert phases(call)[2:] == [("queue", 3, 7, False), ("running", 7, 100, True)]


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (attempt(1, "step", submitted=1), [("arguments", 1, 100, True)]),
        (attempt(1, "step", submitted=1, ready=2), [("arguments", 1, 2, False), ("resources", 2, 100, True)]),
        (attempt(1, "step", started=4), [("running", 4, 100, True)]),
        (
            attempt(1, "step", submitted=1, ready=2, ended=3, failed=True),
            [("arguments", 1, 2, False), ("resources", 2, 3, False)],
        ),
    ],
)
def test_a_task_that_has_not_run(task: TaskAttempt, expected: list[tuple[str, float, float, bool]]) -> None:
    assert phases(task) == expected


def test_the_end_of_a_wait_is_unknown_if_the_start_is() -> None:
    """Caller and worker report separately, each once a second."""
    assert phases(attempt(1, "step", submitted=1, ready=2, sent=3, ended=9)) == [
        ("arguments", 1, 2, False),
        ("resources", 2, 3, False),
    ]


def test_an_end_before_its_beginning_is_moved_to_it() -> None:
    """The clocks of the caller and the worker disagree."""
    assert phases(attempt(1, "step", submitted=5, ready=6, sent=7, started=4, ended=8, worker=1))[2:] == [
        ("sent", 7, 7, False),
        ("running", 7, 8, False),
    ]


@given(ANY_TIME, ANY_TIME, ANY_TIME, ANY_TIME, ANY_TIME, ANY_TIME, st.booleans())
def test_slices_tile(
    submitted: float | None,
    ready: float | None,
    sent: float | None,
    arrived: float | None,
    started: float | None,
    ended: float | None,
    failed: bool,
) -> None:
    states = (submitted, ready, sent, arrived, started, ended)
    if all(state is None for state in states):
        return
    one = only(
        attempt(
            1, "step", submitted=submitted, ready=ready, sent=sent, arrived=arrived, started=started, ended=ended,
            failed=failed, kind="ACTOR_TASK", actor_id=ACTOR,
        )
    )  # fmt: skip
    found = list(slices_of(one, NOW + 100))

    assert all(slice_.duration_s >= 0 for slice_ in found)
    assert all(first.ended_at == second.began_at for first, second in pairwise(found))
    assert [PHASES.index(slice_.phase) for slice_ in found] == sorted({PHASES.index(s.phase) for s in found})
    assert not any(slice_.is_open for slice_ in found[:-1])
    running = running_slice(one, NOW + 100)
    assert running is None or running == found[-1]


@st.composite
def intervals(draw: st.DrawFn) -> list[Slice]:
    at, length = st.floats(0.0, 10.0), st.floats(0.0, 3.0)
    found = draw(st.lists(st.tuples(at, length), max_size=30))
    return [Slice(only(TASK), "running", begin, begin + lasts) for begin, lasts in found]


@given(intervals())
def test_lanes_never_overlap_and_are_as_few_as_possible(slices: list[Slice]) -> None:
    lanes = in_lanes(slices)

    assert sorted(map(id, slices)) == sorted(id(one) for lane in lanes for one in lane)
    for lane in lanes:
        assert all(first.ended_at <= second.began_at for first, second in pairwise(lane))
    at_once = [sum(o.began_at <= one.began_at < o.ended_at or o is one for o in slices) for one in slices]
    assert len(lanes) <= max(at_once, default=0)


@given(intervals())
def test_trimmed_slices_do_not_overlap(slices: list[Slice]) -> None:
    found = trimmed(slices)

    assert len(found) == len(slices)
    assert overlap_s(found) == 0.0
    assert len(in_lanes(found)) <= 1


def test_the_longest_overlap() -> None:
    def one(begin: float, end: float) -> Slice:
        return Slice(only(TASK), "running", begin, end)

    assert overlap_s([]) == 0.0
    assert overlap_s([one(0, 1), one(1, 2)]) == 0.0
    assert overlap_s([one(0, 9), one(1, 2), one(4, 10)]) == 5.0


ATTEMPT = Attempt(task=attempt(1, "load"), state="finished")
TIMES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.sampled_from([QUEUE, FINISHED, FAILED])))


def bars(*times: tuple[float, float]) -> Bars:
    return Bars.of([Bar(begin, end, FINISHED, ATTEMPT, 0) for begin, end in times])


def levels(times: list[tuple[int, int, int]]) -> Levels:
    return Levels.of(Bar(begin, begin + length, kind, ATTEMPT, 0) for begin, length, kind in times)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0, 10), [0, 1, 2, 3]),
        ((1, 2), []),
        ((2, 3), [1]),
        ((3, 4), [2, 3]),
        ((3.5, 3.6), [3]),
        ((5, 6), []),
        ((-1, 0), []),
    ],
)
def test_bars_within_a_half_open_interval(interval: tuple[float, float], expected: list[int]) -> None:
    assert list(bars((0, 1), (2, 3), (3, 3), (3, 5)).within(*interval)) == expected


def test_a_part_of_the_bars() -> None:
    part = bars((0, 1), (2, 3), (3, 5)).only(bytes([1, 0, 1]))
    assert list(part.begins) == [0, 3]
    assert list(part.ends) == [1, 5]
    assert part.kinds == bytes([FINISHED, FINISHED])
    assert len(bars().only(b"")) == 0


@given(TIMES)
def test_means_peak_and_overlaps_equal_those_of_the_obvious_computation(times: list[tuple[int, int, int]]) -> None:
    edges = [float(edge) for edge in range(0, 75, 5)]
    found = levels(times)

    for at, (kind, mean, touching) in enumerate(found.means(edges)):
        began, ended = edges[at], edges[at + 1]
        overlapping = [one for one in times if one[0] < ended and one[0] + one[1] > began]
        area = sum(max(0, min(ended, begin + length) - max(began, begin)) for begin, length, _ in times)
        assert touching == len(overlapping) == len(found.within(began, ended))
        assert mean == pytest.approx(area / 5)
        assert kind in {one[2] for one in overlapping} or (kind == NOTHING and not overlapping)
    most = max((sum(a <= t < a + length for a, length, _ in times) for t in range(75)), default=0)
    assert found.peak == max(1, most)


def test_times_of_this_century_lose_no_digits() -> None:
    now = 1.7e9
    found = Levels.of(Bar(now + n / 1e4, now + (n + 1) / 1e4, QUEUE, ATTEMPT, 0) for n in range(100_000))
    edges = [now + n * 1e-3 for n in range(5_000, 5_004)]
    assert [round(mean, 3) for _, mean, _ in found.means(edges)] == [1.0, 1.0, 1.0]


def test_a_part_keeps_the_scale_of_all() -> None:
    found = levels([(0, 5, QUEUE), (1, 5, FAILED), (2, 5, FAILED)])
    assert found.peak == found.only(bytes([1, 0, 0])).peak == 3
