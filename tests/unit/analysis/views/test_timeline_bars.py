"""Bars by time, and how many of them there are: compared with the obvious computation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline_bars import FAILED, FINISHED, NOTHING, QUEUE, Bar, Bars, Levels
from tests.unit.support.histories import attempt

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
