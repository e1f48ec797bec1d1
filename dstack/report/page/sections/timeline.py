"""The timeline of tasks as a Gantt chart, and the steps of its pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import localtime

from dstack.analysis.views.timeline import Timeline
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.report.page.charts.gantt_bars import GanttBars, bars_of, left_out, rows_of
from dstack.report.page.charts.gantt_chart import KINDS, OTHER_COLOUR, ROW_PX, gantt_charts, gantt_data
from dstack.report.page.section import ReportData, Section, data_element, render
from dstack.report.summaries import (
    SHOWN_PIPELINES,
    STEP_COLUMNS,
    counts_in_words,
    limiting_in_words,
    pipeline_title,
    remarks_on,
    shown_pipelines,
    step_cells,
)
from dstack.words import capitalised, plural, short_duration

KEY = "timeline"


def section(data: ReportData) -> Section | None:
    """The timeline; None without attempts."""
    timeline = _timeline(data)
    if timeline is None or not timeline.attempts:
        return None
    rows = rows_of(TimelineRows(timeline, "worker").tracks)
    began_at, ended_at = timeline.began_at, _ended_at(timeline)
    bars = bars_of(rows.rows, began_at, ended_at)
    made = gantt_data(bars.bars, rows.rows, began_at, _stacks_of_tasks(data), data.stack_ids)
    offset_s = localtime(began_at).tm_gmtoff
    span_s = max(1e-3, ended_at - began_at) * 1.01  # the marks at its end are in view
    times = {"began": began_at, "offset": offset_s, "span": span_s, "rowPx": ROW_PX}
    pipelines = shown_pipelines(timeline)
    body = render(
        "timeline.html",
        key=KEY,
        counts=counts_in_words(timeline),
        rows=rows.rows,
        stacks=_stacks_of_workers(data),
        kinds=list(KINDS.values()),
        functions=made.functions,
        other=OTHER_COLOUR,
        offset=f"{offset_s // 3600:+03d}:{abs(offset_s) % 3600 // 60:02d}",
        data=data_element({**made.data, **times}, "gantt-data"),
        notes=[*left_out(rows), *_merged(bars), *(f"{remark}." for remark in remarks_on(timeline))],
        starving=list(map(capitalised, data.analysed.starving)),
        columns=STEP_COLUMNS,
        pipelines=[
            (pipeline_title(one), list(map(step_cells, one.steps)), limiting_in_words(one))
            for one in pipelines[:SHOWN_PIPELINES]
        ],
        more_pipelines=len(pipelines) - SHOWN_PIPELINES,
    )
    return Section(KEY, "Timeline", body, gantt_charts(KEY, len(rows.rows), span_s), "gantt.js")


def _timeline(data: ReportData) -> Timeline | None:
    """The timeline, of one job if the diagnosis is of one."""
    analysed = data.analysed
    if analysed.history is None or data.stacks.job_id is None:
        return analysed.timeline
    return Timeline(analysed.history, analysed.diagnosis.vertices, job=data.stacks.job_id)


def _ended_at(timeline: Timeline) -> float:
    return max((timeline.ended_at, *(mark.at for mark in timeline.marks)))


def _merged(bars: GanttBars) -> Iterator[str]:
    """What the chart does not show, in sentences."""
    if bars.merged_below_s:
        below = short_duration(bars.merged_below_s)
        yield f"Tasks shorter than {below} that follow each other are drawn as one bar, except the last ones."
    if bars.waits_left_out:
        yield f"{plural(bars.waits_left_out, 'wait')} shorter than {short_duration(bars.merged_below_s)} left out."


def _stacks_of_tasks(data: ReportData) -> Mapping[str, str]:
    """By the id of a running task: the id of the element with its stack."""
    vertices = data.analysed.diagnosis.vertices.values()
    return {one.task_id: data.stack_ids[one.key] for one in vertices if one.task_id and one.key in data.stack_ids}


def _stacks_of_workers(data: ReportData) -> Mapping[str, str]:
    """By the id of a worker: the id of the element with one of its stacks."""
    return {one.worker_id: data.stack_ids[one.key] for one in reversed(data.stacks.executions)}
