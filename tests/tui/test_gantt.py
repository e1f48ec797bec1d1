"""The cells of bars and of their numbers, and the ticks of the time axis: what each column of the screen shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.slices import FAILED, FINISHED, QUEUE, RUNNING, STUCK, WAITING, Bar, Bars, Levels
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline_rows import Lane, TimelineRow
from dstack.tui.widgets.gantt import RowDrawing, title_of
from dstack.tui.widgets.time_axis import Window, cells_of, heights_of, relative, ruler, runs_of, tick_step
from tests.unit.support.histories import attempt

ATTEMPT = Attempt(task=attempt(1, "load"), state="finished")


def bars(*times: tuple[float, float, int]) -> Bars:
    return Bars.of([Bar(*time, ATTEMPT, 0) for time in times])


def drawn(found: Bars, window: Window, name: str = "", gaps: Bars | None = None) -> str:
    row = TimelineRow("row", "row", 1, lane=Lane(found, gaps or bars()))
    return RowDrawing.of(row, window, None, lambda row, number: name).text


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(0.0, 3.0, FINISHED)], "███"),
        ([(0.0, 2.5, FINISHED)], "██▌"),
        ([(0.5, 3.0, FINISHED)], "▌██"),
        ([(1.2, 1.3, FINISHED)], " ▏"),
        ([(1.2, 1.2, FINISHED)], " ▏"),
        ([(0.0, 1.5, FINISHED), (1.5, 3.0, FINISHED)], "█│█"),
        ([(0.1, 0.2, FINISHED), (0.4, 0.5, FINISHED)], "░"),
        ([(0.0, 0.4, FINISHED), (0.5, 0.9, FINISHED)], "▓"),
        ([(0.0, 0.4, FINISHED), (0.5, 0.9, FAILED)], "✖"),
        ([(0.0, 2.0, FAILED)], "██"),
        ([(0.0, 2.0, RUNNING)], "█▶"),
        ([(0.0, 2.0, WAITING)], "█◆"),
        ([(0.0, 2.0, STUCK)], "█■"),
        ([(-5.0, 50.0, FINISHED)], "██████████"),
    ],
)
def test_a_cell_shows_how_much_of_it_is_filled_and_the_worst_of_several(
    times: list[tuple[float, float, int]], expected: str
) -> None:
    assert drawn(bars(*times), Window(0.0, 10.0, 10)) == expected


def test_a_bar_with_room_shows_its_name_and_whether_it_still_runs() -> None:
    window = Window(0.0, 10.0, 10)
    assert drawn(bars((0.0, 8.0, FINISHED)), window, "train") == "train███"
    assert drawn(bars((0.0, 5.0, RUNNING)), window, "train") == "tra…▶"
    assert drawn(bars((0.0, 3.0, FINISHED)), window, "train") == "███"
    assert drawn(bars((0.0, 6.0, FINISHED)), window, "列車列車") == "列車 …"


def test_waits_are_drawn_in_gaps_unless_they_are_too_narrow_to_be_seen() -> None:
    window = Window(0.0, 10.0, 10)
    assert drawn(bars((4.0, 6.0, FINISHED)), window, gaps=bars((1.0, 4.0, QUEUE))) == " ═══██"
    many = bars(*((n / 10, n / 10 + 0.05, QUEUE) for n in range(30)))
    assert drawn(bars((4.0, 6.0, FINISHED)), window, gaps=many) == "    ██"


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 3), st.sampled_from([FINISHED, RUNNING, FAILED])), max_size=60),
    st.floats(0, 50),
    st.floats(0.5, 100),
    st.integers(1, 40),
)
def test_cells_equal_those_of_the_obvious_computation(
    steps: list[tuple[float, float, int]], began: float, length: float, columns: int
) -> None:
    times, at = [], 0.0
    for gap, duration, kind in steps:
        times.append((at + gap, at + gap + duration, kind))
        at += gap + duration
    window = Window(began, began + length, columns)

    cells = cells_of(bars(*times), bytes(kind for _, _, kind in times), window)

    assert set(cells) <= set(range(columns))
    for column in range(columns):
        first, last = window.edge(column), window.edge(column + 1)
        inside = [one for one in times if one[0] < last - 1e-6 and one[1] > first + 1e-6]
        covered = sum(min(last, end) - max(first, begin) for begin, end, _ in inside) / (last - first)
        if not inside:
            assert column not in cells or cells[column].filled < 1e-3
            continue
        assert cells[column].filled == pytest.approx(covered, abs=1e-3)
        assert cells[column].kind >= max(kind for _, _, kind in inside)
    for run in runs_of(cells):
        assert all(cells[column].number == run.number for column in range(run.column, run.column + run.width))


def test_numbers_are_drawn_relative_to_the_most_at_one_time() -> None:
    levels = Levels.of([Bar(0, 8, QUEUE, ATTEMPT, 0), Bar(2, 4, QUEUE, ATTEMPT, 0), Bar(6.5, 6.6, QUEUE, ATTEMPT, 0)])
    heights = heights_of(levels, Window(0.0, 10.0, 10))
    assert [height[1] if height else " " for height in heights] == list("▄▄██▄▄▄▄  ")
    assert {height[0] for height in heights if height} == {QUEUE}


@pytest.mark.parametrize(
    ("length", "columns", "expected"),
    [
        (10.0, 60, "╵0 s        ╵2 s        ╵4 s        ╵6 s        ╵8 s"),
        (0.001, 40, "╵0.0000 s           ╵0.0005 s"),
        (3_600.0, 50, "╵0 s        ╵15:00       ╵30:00      ╵45:00"),
        (864_000.0, 50, "╵0 s           ╵72:00:00      ╵144:00:00"),
    ],
)
def test_ticks_are_at_round_times(length: float, columns: int, expected: str) -> None:
    assert ruler(Window(1.7e9, 1.7e9 + length, columns), 1.7e9).rstrip() == expected


@given(st.floats(1e-6, 1e7))
def test_a_step_is_not_below_the_least_and_not_much_above(least: float) -> None:
    step = tick_step(least)
    assert least * 0.99 <= step <= max(least * 5.1, 1e-7)


@pytest.mark.parametrize(
    ("seconds", "step", "expected"),
    [
        (5, 1, "5 s"),
        (-5, 1, "-5 s"),
        (90, 30, "1:30"),
        (3_661, 1, "1:01:01"),
        (0.125, 0.005, "0.125 s"),
        (75.5, 0.5, "75.5 s"),
        (0.0, 0.2, "0.0 s"),
    ],
)
def test_times_are_as_exact_as_the_step(seconds: float, step: float, expected: str) -> None:
    assert relative(seconds, step) == expected


def test_a_title_is_cut_to_its_columns() -> None:
    assert title_of(TimelineRow("a", "node 10.0.0.1", 0, is_open=True), 18) == "▾ node 10.0.0.1   "
    assert title_of(TimelineRow("a", "actor Trainer with a long name", 1), 18) == "    actor Traine… "
    assert len(title_of(TimelineRow("a", "\x1b[2J", 2), 18)) == 18
