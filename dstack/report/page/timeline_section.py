"""The timeline of tasks as a Gantt chart, and the steps of its pipelines.

The chart has bars on rows, waits as marks, and the axes of time apart, so that they stay in view. It is empty in the
page, which has short columns, with each text once: its script makes the columns of the chart from them, and finds the
bar below the pointer, as many bars are narrower than a pixel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import localtime

from bokeh.models import BoxZoomTool, ColumnDataSource, DatetimeAxis, DatetimeTickFormatter, LinearAxis, Plot, Range1d

from dstack.analysis.history import slices
from dstack.analysis.history.critical_path import CriticalPath
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.history.what_if import WhatIf
from dstack.analysis.naming.names import bounds
from dstack.analysis.views.timeline import Mark, Timeline
from dstack.analysis.views.timeline_rows import TimelineRows
from dstack.model.vertex_keys import Key
from dstack.report import critical_path_text, summaries
from dstack.report.page.gantt_bars import GanttBar, GanttBars, GanttRow, bars_of, left_out, rows_of
from dstack.report.page.section import ReportData, Section, data_element, new_chart, rectangles, render, theme_colour
from dstack.words import SHOWN, capitalised, plural, short_duration, shortly, visible

KINDS: Mapping[int, tuple[str, str]] = {
    slices.ARGUMENTS: ("waits for arguments", "#e3c34a"),
    slices.RESOURCES: ("waits for resources", "#eb9a5c"),
    slices.SENT: ("waits for its worker", "#b9a3e3"),
    slices.QUEUE: ("waits for its actor", "#d98fca"),
    slices.FINISHED: ("finished", "#86b4e8"),
    slices.RUNNING: ("running", "#5cc28a"),
    slices.WAITING: ("has begun, and waits now", "#c9ced6"),
    slices.STUCK: ("can never proceed", "#d0806a"),
    slices.FAILED: ("failed", "#f0717b"),
}
"""The words for what a bar is, and its colour, on which black text is readable, in a light and a dark page."""
FUNCTION_COLOURS = (
    "#86b4e8",
    "#f0b36b",
    "#8fd19e",
    "#d98fca",
    "#c9b458",
    "#74cbd1",
    "#e58f80",
    "#a99ee8",
    "#b5d36a",
    "#c9a58b",
)
OTHER_COLOUR = "#b4b8be"
LONGEST_ERROR = 300
SHOWN_FUNCTIONS = 5
MOST_MARKS_OF_A_ROW = 10
UNIQUE_PART = 16
"""So many hexadecimal digits at the beginning of a task's id differ from task to task; the rest is its actor or job."""
ROW_PX = 18
AXES_PX = 58
BAR_COLUMNS = ("left", "right", "top", "bottom", "colour", "alpha")
EDGES = ("left", "right", "top", "bottom")
"""The columns of what is drawn over some bars: hatches, and outlines of those on the critical path."""
MARK_COLUMNS = ("x", "y", "from")
CLOCK = DatetimeTickFormatter(
    microseconds="%H:%M:%S.%f",
    milliseconds="%H:%M:%S.%3N",
    seconds="%H:%M:%S",
    minsec="%H:%M:%S",
    minutes="%H:%M",
    hourmin="%H:%M",
    hours="%d %b %H:%M",
    days="%d %b",
)
KEY = "timeline"


@dataclass(frozen=True, slots=True)
class GanttData:
    """What the script needs; ``functions`` are those with a colour of their own."""

    data: Mapping[str, object]
    functions: Sequence[tuple[str, str]]


def gantt_data(
    bars: Sequence[GanttBar],
    rows: Sequence[GanttRow],
    began_at: float,
    stack_of_task: Mapping[str, str],
    stack_ids: Mapping[Key, str],
    critical: Collection[int] = (),
) -> GanttData:
    """The columns; times are relative to ``began_at``, and ids are those of the elements with stacks.

    ``critical`` are the Python ids of the attempts that are on the critical path.
    """
    names: dict[str, int] = {}
    notes: dict[str, int] = {}
    endings: dict[str, int] = {}
    stacks: dict[str, int] = {}
    coloured = _coloured(bars)
    functions = {number: _functions(row.levels.bars.attempts) for number, row in enumerate(rows) if row.levels}
    columns: dict[str, list[object]] = defaultdict(list)
    for bar in bars:
        one = bar.attempts[0] if len(bar.attempts) == 1 else None
        columns["left"].append(round(bar.began_at - began_at, 6))
        columns["right"].append(round(bar.ended_at - began_at, 6))
        columns["row"].append(bar.row)
        columns["kind"].append(bar.kind)
        columns["level"].append(-1 if bar.level is None else round(bar.level, 2))
        columns["count"].append(bar.mean if bar.level is not None else len(bar.attempts))
        columns["busy"].append(round(bar.busy, 2))
        columns["name"].append(_number(names, _name(bar)))
        columns["note"].append(_number(notes, functions.get(bar.row, "") if bar.level is not None else _note(bar)))
        columns["task"].append(one.task.task_id[:UNIQUE_PART] if one else "")
        columns["ending"].append(_number(endings, one.task.task_id[UNIQUE_PART:] if one else ""))
        columns["stack"].append(_number(stacks, _stack(bar, one, stack_of_task)))
        columns["critical"].append(int(not bar.is_wait and any(_is_critical(one, critical) for one in bar.attempts)))
    data = {
        **columns,
        "names": list(map(visible, names)),
        "colours": [coloured.get(name, OTHER_COLOUR) for name in names],
        "notes": list(notes),
        "endings": list(map(visible, endings)),
        "stacks": list(stacks),
        "words": {kind: words for kind, (words, _) in KINDS.items()},
        "kindColours": {kind: colour for kind, (_, colour) in KINDS.items()},
        "marks": list(_marks(rows, began_at, stack_ids)),
    }
    return GanttData(data, [(visible(name), colour) for name, colour in coloured.items()])


def _is_critical(attempt: Attempt, critical: Collection[int]) -> bool:
    """Whether an attempt is marked as on the critical path; drivers always are, so they are not."""
    return id(attempt) in critical and attempt.task.kind != "DRIVER_TASK"


def _number(numbers: dict[str, int], text: str) -> int:
    """The number of a text, the same for equal ones."""
    return numbers.setdefault(text, len(numbers))


def _marks(rows: Sequence[GanttRow], began_at: float, stack_ids: Mapping[Key, str]) -> Iterable[Mapping[str, object]]:
    """For each row with waits: when they were seen, since when the longest one lasts at least, and what they are."""
    for number, row in enumerate(rows):
        if row.marks:
            at = max(mark.at for mark in row.marks) - began_at
            longest = max((mark.since.at_least_s or 0.0 if mark.since else 0.0) for mark in row.marks)
            texts = [_mark_text(mark) for mark in row.marks[:MOST_MARKS_OF_A_ROW]]
            more = len(row.marks) - len(texts)
            yield {
                "row": number,
                "at": round(at, 6),
                "from": round(max(0.0, at - longest), 6),
                "texts": [*texts, f"{plural(more, 'more wait')}"] if more else texts,
                "stack": next((stack_ids[mark.key] for mark in row.marks if mark.key in stack_ids), ""),
            }


def _mark_text(mark: Mark) -> str:
    lasts = bounds(mark.since)
    return visible(mark.text) + (f", for {lasts}" if lasts else "")


def _name(bar: GanttBar) -> str:
    """The function of most of its attempts; empty for a count."""
    if not bar.attempts:
        return ""
    return _function(bar.attempts[0]) if len(bar.attempts) == 1 else _most_common(bar.attempts)


def _most_common(attempts: Sequence[Attempt]) -> str:
    ((name, _),) = Counter(map(_function, attempts)).most_common(1)
    return name


def _function(attempt: Attempt) -> str:
    return attempt.task.name or ("driver" if attempt.task.kind == "DRIVER_TASK" else "task")


def _note(bar: GanttBar) -> str:
    """The attempt and error of one, the functions of several."""
    if len(bar.attempts) > 1:
        return _functions(bar.attempts)
    task = bar.attempts[0].task
    parts = [f"attempt {task.attempt + 1}"] if task.attempt else []
    error = "" if bar.is_wait else visible(f"{task.error_type} {task.error}".strip())
    parts += [error[:LONGEST_ERROR] + ("…" if len(error) > LONGEST_ERROR else "")] if error else []
    return "\n".join(parts)


def _functions(attempts: Iterable[Attempt]) -> str:
    """The functions of attempts, those with most attempts first."""
    counts = Counter(map(_function, attempts)).most_common()
    return shortly([f"{count:,} × {visible(name)}" for name, count in counts], shown=SHOWN_FUNCTIONS)


def _stack(bar: GanttBar, attempt: Attempt | None, stack_of_task: Mapping[str, str]) -> str:
    return stack_of_task.get(attempt.task.task_id, "") if attempt and bar.kind in slices.OPEN else ""


def _coloured(bars: Iterable[GanttBar]) -> dict[str, str]:
    """The colours of the functions that take most of the time."""
    times: Counter[str] = Counter()
    for bar in bars:
        if bar.attempts and not bar.is_wait and bar.attempts[0].task.kind != "DRIVER_TASK":
            times[_name(bar)] += bar.ended_at - bar.began_at  # type: ignore[assignment]  # typed for whole numbers
    found = [name for name, _ in times.most_common(len(FUNCTION_COLOURS))]
    return dict(zip(found, FUNCTION_COLOURS, strict=False))


def gantt_charts(key: str, rows: int, span_s: float) -> Mapping[str, Plot]:
    """The axes and the bars below them; their elements have the ids ``KEY-axes`` and ``KEY-bars``."""
    return {f"{key}-axes": _axes(f"{key}-axes", span_s), f"{key}-bars": _bars(f"{key}-bars", rows, span_s)}


def _axes(name: str, span_s: float) -> Plot:
    chart = new_chart(name, AXES_PX, Range1d(start=0, end=span_s), Range1d(start=0, end=1), zoom=None)
    chart.extra_x_ranges = {"clock": Range1d(start=0, end=1)}
    chart.min_border = 0
    chart.add_layout(LinearAxis(), "above")
    chart.add_layout(DatetimeAxis(x_range_name="clock", formatter=CLOCK.clone()), "above")
    chart.scatter([], [])  # Bokeh warns of a chart without any
    return chart


def _bars(name: str, rows: int, span_s: float) -> Plot:
    x_range = Range1d(start=0, end=span_s, bounds=(0, span_s))
    chart = new_chart(name, rows * ROW_PX, x_range, Range1d(start=rows, end=0), zoom="width")
    chart.toolbar_location = None
    chart.toolbar.active_drag = next(tool for tool in chart.toolbar.tools if isinstance(tool, BoxZoomTool))
    chart.min_border = 0
    chart.xgrid.visible = True
    shades = {"fill_color": "colour", "fill_alpha": "alpha", "line_color": "colour", "line_alpha": "alpha"}
    rectangles(chart, BAR_COLUMNS, **shades)
    rectangles(  # apart, as a pattern for each bar would take a second for each 100 of them
        chart,
        EDGES,
        fill_color=None,
        line_color=None,
        hatch_pattern="/",
        hatch_color="#5c0010",
        hatch_scale=6,
    )
    outlines = rectangles(chart, EDGES, fill_color=None, line_width=2)
    outlines.tags = [theme_colour("line_color", "--text")]
    marks = ColumnDataSource({column: [] for column in MARK_COLUMNS})
    lines = chart.segment(x0="from", x1="x", y0="y", y1="y", source=marks, line_width=2)
    lines.tags = [theme_colour("line_color", "--mark")]
    points = chart.scatter("x", "y", source=marks, marker="diamond", size=11)
    points.tags = [theme_colour("fill_color", "--mark"), theme_colour("line_color", "--background")]
    return chart


def section(data: ReportData) -> Section | None:
    """The timeline; None without attempts."""
    timeline = _timeline(data)
    if timeline is None or not timeline.attempts:
        return None
    rows = rows_of(TimelineRows(timeline, "worker").tracks)
    began_at, ended_at = timeline.began_at, _ended_at(timeline)
    bars = bars_of(rows.rows, began_at, ended_at)
    path = timeline.critical_path
    critical = path.attempts if path else ()
    made = gantt_data(bars.bars, rows.rows, began_at, _stacks_of_tasks(data), data.stack_ids, critical)
    offset_s = localtime(began_at).tm_gmtoff
    span_s = max(1e-3, ended_at - began_at) * 1.01  # the marks at its end are in view
    times = {"began": began_at, "offset": offset_s, "span": span_s, "rowPx": ROW_PX}
    pipelines = summaries.shown_pipelines(timeline)
    body = render(
        "timeline.html",
        key=KEY,
        counts=summaries.counts_in_words(timeline),
        rows=rows.rows,
        stacks=_stacks_of_workers(data),
        kinds=[(words, colour, kind >= slices.STUCK) for kind, (words, colour) in KINDS.items()],
        functions=made.functions,
        other=OTHER_COLOUR,
        offset=f"{offset_s // 3600:+03d}:{abs(offset_s) % 3600 // 60:02d}",
        data=data_element({**made.data, **times}, "gantt-data"),
        notes=[*left_out(rows), *_merged(bars), *(f"{remark}." for remark in summaries.remarks_on(timeline))],
        starving=list(map(capitalised, data.analysed.starving)),
        columns=summaries.STEP_COLUMNS,
        pipelines=[
            (
                summaries.pipeline_title(one),
                list(map(summaries.step_cells, one.steps)),
                summaries.limiting_in_words(one),
            )
            for one in pipelines[:SHOWN]
        ],
        more_pipelines=len(pipelines) - SHOWN,
        path=_path(timeline, path) if path else None,
    )
    return Section(KEY, "Timeline", body, gantt_charts(KEY, len(rows.rows), span_s), "gantt.js")


@dataclass(frozen=True, slots=True)
class _PathTexts:
    """The texts of the critical path: its title, a table, and lines about its iterations and about changes."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str]


def _path(timeline: Timeline, path: CriticalPath) -> _PathTexts:
    longest = critical_path_text.longest_in_words(path)
    predictions = critical_path_text.predictions_in_words(WhatIf(timeline.run, path))
    title, rows = critical_path_text.path_title(path), critical_path_text.path_rows(path)
    return _PathTexts(title, critical_path_text.COLUMNS, rows, [*filter(None, (longest,)), *predictions])


def _timeline(data: ReportData) -> Timeline | None:
    """The timeline, of one job if the diagnosis is of one."""
    analysed = data.analysed
    if analysed.history is None or data.stacks.job_id is None:
        return analysed.timeline
    return Timeline(
        analysed.history, analysed.diagnosis.vertices, stuck=analysed.diagnosis.stuck, job=data.stacks.job_id
    )


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
