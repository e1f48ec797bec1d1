from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.history.slices import FAILED, RUNNING
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Timeline
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot, TaskAttempt, TaskHistory
from dstack.report.page.gantt_bars import bars_of, rows_of
from dstack.report.page.section import ReportData, Section
from dstack.report.page.timeline_section import COLOURED_FUNCTIONS, GanttData, gantt_data, section
from tests.examples.recorded import RECORDED
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CALLS, ROOT
from tests.unit.scenes import Scene
from tests.unit.support.histories import attempt, driver_attempt, index, task_id
from tests.unit.support.html_elements import ATTACK, Element, elements_of
from tests.unit.support.large_histories import history_snapshot

PIPELINE = load(RECORDED_CALLS)
ROLES = load(ROOT / "docs" / "case-studies" / "rlhf_roles.json.gz")


def section_of(snapshot: Snapshot, job: str | None = None) -> Section | None:
    return section(ReportData(AnalysedSnapshot.of(snapshot, job=job)))


def page_of(snapshot: Snapshot) -> Element:
    found = section_of(snapshot)
    assert found is not None
    return elements_of(found.body)


def test_the_chart_has_the_rows_of_the_workers_and_the_waits_of_the_snapshot() -> None:
    page = page_of(PIPELINE)
    rows = [row.text for row in page.all(class_="gantt-row")]
    (data,) = page.all("script")
    marks = json.loads(data.text)["marks"]

    assert rows[:3] == ["Node 192.0.2.2 (980566a4)", "actor Rollout c2f0c4ae, pid 15741", "lane 2"]
    assert page.text.startswith("121 attempts of tasks in 14 s, in 14 processes on 2 nodes: 116 finished, 1 failed")
    assert [(mark["row"], mark["stuck"]) for mark in marks if not mark["stack"]] == [(25, True)]
    assert (rows[24], rows[25]) == ("actor Trainer 34b17d9f, pid 15620", "waiting")
    assert any("waits in ray.get for Rollout.pause" in text for mark in marks for text in mark["texts"])
    links = {one.attributes["href"].removeprefix("#") for one in page.all("a")}
    stacks = {mark["stack"] for mark in marks if mark["stack"]}
    assert links == stacks == set(ReportData(AnalysedSnapshot.of(PIPELINE)).stack_ids.values())


def test_the_steps_of_pipelines_are_tables() -> None:
    page = page_of(PIPELINE)

    assert next(page.all("h3")).text == "5 chains through Trainer.step → Store.size"
    _, steps, *_ = page.all("table")
    assert [cell.text for cell in steps.all("td")][:3] == ["Trainer.step", "5", "85 ms"]


def test_bars_on_the_critical_path_are_marked_and_its_parts_are_a_table() -> None:
    page = page_of(ROLES)
    (data,) = page.all("script")
    columns = json.loads(data.text)
    names = [columns["names"][name] for name in columns["name"]]
    marked = {name for name, mark in zip(names, columns["critical"], strict=True) if mark}

    assert "Reward.score" in marked
    assert marked.isdisjoint({"driver", "Critic.values"})
    assert "Critical path of an iteration of driver rlhf_roles.py" in [one.text for one in page.all("h3")][-1]
    assert [cell.text for cell in list(page.all("table"))[-1].all("td")][:4] == ["Reward.score", "86%", "2.3 s", "runs"]
    assert "Reward.score twice as fast: 1.5 s instead of 2.6 s" in page.text


def test_a_run_that_is_stuck_has_no_critical_path() -> None:
    page = page_of(load(next(RECORDED.rglob("actor_pinned_to_full_node.json.gz"))))

    assert "ritical path" not in page.text
    assert "instead of" not in page.text


def test_a_job_has_its_attempts_only() -> None:
    jobs = {one.job_id for one in PIPELINE.jobs}
    (job,) = jobs
    found = section_of(PIPELINE, job)

    assert found is not None
    assert "121 attempts" in found.body


@pytest.mark.parametrize("history", [None, TaskHistory(asked_at=1.7e9, attempts=())])
def test_without_attempts_there_is_no_section(history: TaskHistory | None) -> None:
    assert section_of(replace(Scene().snapshot(), history=history)) is None


def test_hostile_names_remain_text() -> None:
    page = page_of(hostile(PIPELINE, ATTACK))

    assert {one.tag for one in page.all()}.isdisjoint({"img", "svg", "iframe"})
    assert len(list(page.all("script"))) == 1
    assert all(not name.startswith("on") for one in page.all() for name in one.attributes)


def test_a_large_history_makes_a_bounded_section() -> None:
    found = section_of(history_snapshot(3_000, 600, nodes=10))
    assert found is not None
    page = elements_of(found.body)

    assert len(list(page.all(class_="gantt-row"))) <= 300
    assert len(found.body) < 1_000_000
    assert "workers and functions left out" in page.text


def data_of(*attempts: TaskAttempt, most: int = 1_000, stacks: Mapping[str, str] = MappingProxyType({})) -> GanttData:
    timeline = Timeline(index(*attempts))
    rows = rows_of(TimelineRows(timeline, "worker").tracks).rows
    bars = bars_of(rows, timeline.began_at, timeline.ended_at, most)
    return gantt_data(bars.bars, rows, timeline, stacks, {})


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
    assert len({len(found[column]) for column in (*columns, "critical", "lead", "caller")}) == 1


def test_a_bar_has_the_bar_of_its_caller_and_when_it_was_called() -> None:
    found: Any = data_of(
        attempt(1, "outer", submitted=0, started=1, worker=1),
        attempt(2, "inner", submitted=2, started=5, ended=6, worker=2, parent=task_id(1)),
    ).data
    names = [found["names"][name] for name in found["name"]]
    inner = max(number for number, name in enumerate(names) if name == "inner")

    assert names[found["caller"][inner]] == "outer"
    assert found["lead"][inner] == 3.0
    assert found["caller"][names.index("outer")] == -1


def test_functions_with_most_time_have_colours_and_a_merged_bar_lists_its_own() -> None:
    runs = [attempt(n, f"f{n % 12}", submitted=n, started=n, ended=n + 0.9, worker=1) for n in range(1, 90)]
    found = data_of(driver_attempt(), *runs, most=30)
    notes: Any = found.data["notes"]

    assert len(found.functions) == COLOURED_FUNCTIONS
    assert any("1 × f" in note and "more" in note for note in notes)
    assert "driver" not in found.functions
