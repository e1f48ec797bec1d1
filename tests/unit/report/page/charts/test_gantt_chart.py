"""None"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dstack.analysis.views.timeline import Timeline
from dstack.analysis.views.timeline_bars import FAILED, RUNNING
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.model import TaskAttempt
from dstack.report.page.charts.gantt_bars import bars_of, rows_of
from dstack.report.page.charts.gantt_chart import FUNCTION_COLOURS, GanttData, gantt_data
from tests.unit.support.histories import attempt, driver_attempt, index, task_id


def data_of(*attempts: TaskAttempt, most: int = 1_000, stacks: Mapping[str, str] = MappingProxyType({})) -> GanttData:
    timeline = Timeline(index(*attempts))
    rows = rows_of(TimelineRows(timeline, "worker").tracks).rows
    bars = bars_of(rows, timeline.began_at, timeline.ended_at, most)
    return gantt_data(bars.bars, rows, timeline.began_at, stacks, {})


def test_a_bar_has_its_task_its_error_and_the_stack_of_what_runs() -> None:
    found: Any = data_of(
        attempt(1, "load", submitted=0, started=1, ended=2, worker=1, failed=True, retry=1),
        attempt(2, "train\x1b", submitted=0, started=3, worker=1),
        stacks={task_id(1): "stack-1", task_id(2): "stack-2"},
    ).data
    failed, running = (found["kind"].index(kind) for kind in (FAILED, RUNNING))

    assert (found["left"][failed], found["right"][failed]) == (1.0, 2.0)
    assert found["notes"][found["note"][failed]] == "attempt 2\nValueError: no"
    assert found["task"][running] + found["endings"][found["ending"][running]] == task_id(2)
    assert found["names"][found["name"][running]] == "train\\x1b"
    assert [found["stacks"][found["stack"][one]] for one in (failed, running)] == ["", "stack-2"]
    columns = ("left", "right", "row", "kind", "level", "count", "busy", "name", "note", "task", "ending", "stack")
    assert len({len(found[column]) for column in columns}) == 1


def test_functions_with_most_time_have_colours_and_a_merged_bar_lists_its_own() -> None:
    runs = [attempt(n, f"f{n % 12}", submitted=n, started=n, ended=n + 0.9, worker=1) for n in range(1, 90)]
    found = data_of(driver_attempt(), *runs, most=30)
    notes: Any = found.data["notes"]

    assert [colour for _, colour in found.functions] == list(FUNCTION_COLOURS)
    assert any("1 × f" in note and "more" in note for note in notes)
    assert "driver" not in dict(found.functions)
