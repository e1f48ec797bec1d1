"""The timeline of tasks as a chart, and the steps of its pipelines.

The page has the names of the rows, and the bars as columns of numbers with each text once. A script draws them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import localtime

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
from dstack.report.page.section import ReportData, Section, data_element, render
from dstack.words import SHOWN, capitalised, plural, short_duration, shortly, visible

KINDS: Mapping[int, str] = {
    slices.ARGUMENTS: "waits for arguments",
    slices.RESOURCES: "waits for resources",
    slices.SENT: "waits for its worker",
    slices.QUEUE: "waits for its actor",
    slices.FINISHED: "finished",
    slices.RUNNING: "running",
    slices.WAITING: "has begun, and waits now",
    slices.STUCK: "can never proceed",
    slices.FAILED: "failed",
}
"""The words for what a bar is; its colour is ``--kind-N`` in the style of the page."""
COLOURED_FUNCTIONS = 10
"""So many functions have a colour of their own, ``--function-N``; the others share the one after the last."""
LONGEST_ERROR = 300
SHOWN_FUNCTIONS = 5
MOST_MARKS_OF_A_ROW = 10
UNIQUE_PART = 16
"""So many hexadecimal digits at the beginning of a task's id differ from task to task; the rest is its actor or job."""
KEY = "timeline"


class _Numbers(dict[str, int]):
    """The numbers of texts, the same for equal ones."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


@dataclass(frozen=True, slots=True)
class GanttData:
    """What the script needs; ``functions`` are those with a colour of their own."""

    data: Mapping[str, object]
    functions: Sequence[str]


def gantt_data(
    bars: Sequence[GanttBar],
    rows: Sequence[GanttRow],
    timeline: Timeline,
    stack_of_task: Mapping[str, str],
    stack_ids: Mapping[Key, str],
    critical: Collection[int] = (),
) -> GanttData:
    """The columns; times are relative to the beginning of the timeline, and ids are those of elements with stacks.

    ``critical`` are the Python ids of the attempts that are on the critical path.
    """
    names, notes, endings, stacks = _Numbers(), _Numbers(), _Numbers(), _Numbers()
    coloured = _coloured(bars)
    functions = {number: _functions(row.levels.bars.attempts) for number, row in enumerate(rows) if row.levels}
    columns: dict[str, list[object]] = defaultdict(list)
    for bar in bars:
        is_count = bar.level is not None
        task_id = bar.attempts[0].task.task_id if len(bar.attempts) == 1 else ""
        is_driver = any(map(_is_driver, bar.attempts))
        is_critical = not bar.is_wait and not is_driver and any(id(one) in critical for one in bar.attempts)
        values = {
            "left": round(bar.began_at - timeline.began_at, 6),
            "right": round(bar.ended_at - timeline.began_at, 6),
            "row": bar.row,
            "kind": bar.kind,
            "level": round(bar.level, 2) if bar.level is not None else -1,
            "count": bar.mean if is_count else 0 if is_driver else len(bar.attempts),
            "busy": round(bar.busy, 2),
            "name": names[_name(bar)],
            "note": notes[functions[bar.row] if is_count else _note(bar)],
            "task": task_id[:UNIQUE_PART],
            "ending": endings[task_id[UNIQUE_PART:]],
            "stack": stacks[stack_of_task.get(task_id, "") if bar.kind in slices.OPEN else ""],
            "critical": int(is_critical),
            "lead": _lead_s(bar),
        }
        for column, value in values.items():
            columns[column].append(value)
    data = {
        **columns,
        "caller": list(_callers(bars, timeline)),
        "names": list(map(visible, names)),
        "colours": [coloured.get(name, COLOURED_FUNCTIONS) for name in names],
        "notes": list(notes),
        "endings": list(map(visible, endings)),
        "stacks": list(stacks),
        "words": KINDS,
        "marks": list(_marks(rows, timeline.began_at, stack_ids)),
    }
    return GanttData(data, list(map(visible, coloured)))


def _callers(bars: Sequence[GanttBar], timeline: Timeline) -> Iterator[int]:
    """For each bar the number of the bar that called all of its attempts, or -1."""
    ran = [(number, one) for number, bar in enumerate(bars) if not bar.is_wait for one in bar.attempts]
    bar_of = {id(one): number for number, one in ran}
    for bar in bars:
        callers = {bar_of.get(id(timeline.history.caller(one)), -1) for one in bar.attempts}
        yield callers.pop() if len(callers) == 1 else -1


def _lead_s(bar: GanttBar) -> float:
    """How long before the beginning of a bar its attempt was submitted; 0 for several and for waits."""
    submitted = bar.attempts[0].submitted_at if len(bar.attempts) == 1 and not bar.is_wait else None
    return 0 if submitted is None else max(0, round(bar.began_at - submitted, 6))


def _is_driver(attempt: Attempt) -> bool:
    """Whether this is a driver: it counts as no task, and always is on the critical path."""
    return attempt.task.kind == "DRIVER_TASK"


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
                "stuck": any(mark.is_stuck for mark in row.marks),
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
    common = Counter(map(_function, bar.attempts)).most_common(1)
    return common[0][0] if common else ""


def _function(attempt: Attempt) -> str:
    return attempt.task.name or ("driver" if attempt.task.kind == "DRIVER_TASK" else "task")


def _note(bar: GanttBar) -> str:
    """The attempt and error of one, the functions of several."""
    if len(bar.attempts) != 1:
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


def _coloured(bars: Iterable[GanttBar]) -> dict[str, int]:
    """The numbers of the functions that take most of the time."""
    times: dict[str, float] = defaultdict(float)
    for bar in bars:
        if bar.attempts and not bar.is_wait and not _is_driver(bar.attempts[0]):
            times[_name(bar)] += bar.ended_at - bar.began_at
    longest = sorted(times, key=lambda name: -times[name])[:COLOURED_FUNCTIONS]
    return {name: number for number, name in enumerate(longest)}


def section(data: ReportData) -> Section | None:
    """The timeline; None without attempts."""
    timeline = data.timeline
    if timeline is None or not timeline.attempts:
        return None
    rows = rows_of(TimelineRows(timeline, "worker").tracks)
    began_at, ended_at = timeline.began_at, _ended_at(timeline)
    bars = bars_of(rows.rows, began_at, ended_at)
    path = data.critical_path
    critical = path.attempts if path else ()
    made = gantt_data(bars.bars, rows.rows, timeline, _stacks_of_tasks(data), data.stack_ids, critical)
    offset_s = localtime(began_at).tm_gmtoff
    span_s = max(1e-3, ended_at - began_at) * 1.01  # the marks at its end are in view
    pipelines = summaries.shown_pipelines(timeline)
    body = render(
        "timeline.html",
        key=KEY,
        counts=summaries.counts_in_words(timeline),
        rows=rows.rows,
        stacks=_stacks_of_workers(data),
        kinds=KINDS,
        functions=made.functions,
        others=COLOURED_FUNCTIONS,
        offset=f"{offset_s // 3600:+03d}:{abs(offset_s) % 3600 // 60:02d}",
        data=data_element({**made.data, "began": began_at, "offset": offset_s, "span": span_s}, "gantt-data"),
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
        path_title=critical_path_text.path_title(path) if path else "",
        path_columns=critical_path_text.COLUMNS,
        path_rows=critical_path_text.path_rows(path) if path else (),
        path_lines=_path_lines(path, data.what_if) if path and data.what_if else (),
    )
    return Section(KEY, "Timeline", body, script="gantt.js")


def _path_lines(path: CriticalPath, what_if: WhatIf) -> list[str]:
    """Lines about its iterations and about changes."""
    longest = critical_path_text.longest_in_words(path)
    return [*filter(None, (longest,)), *critical_path_text.predictions_in_words(what_if)]


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
