"""The summary of a timeline as text: what is in it, what is missing, and what limits its pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dstack.analysis.history.pipelines import Pipeline, Step
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import NOT_STARTED, Timeline
from dstack.report.safe_text import SafeText
from dstack.words import capitalised, duration, listed, plural, short_duration

SHOWN_PIPELINES = 3
STEP_COLUMNS = ("step", "calls", "mean", "max", "mean wait", "max wait", "at once", "in use")


def print_timeline_summary(console: Console, timeline: Timeline, analysed: AnalysedSnapshot) -> None:
    """Print the summary, with a table of the steps of each pipeline."""
    console.print(SafeText(counts_in_words(timeline), "bold"), soft_wrap=True)
    pipelines = shown_pipelines(timeline)
    for pipeline in pipelines[:SHOWN_PIPELINES]:
        console.print()
        console.print(SafeText(pipeline_title(pipeline)), soft_wrap=True)
        console.print(_steps(pipeline))
        console.print(SafeText(limiting_in_words(pipeline)), soft_wrap=True)
    if len(pipelines) > SHOWN_PIPELINES:
        console.print(SafeText(f"and {plural(len(pipelines) - SHOWN_PIPELINES, 'more pipeline')}", "dim"))
    if remarks := [*remarks_on(timeline), *map(capitalised, analysed.starving)]:
        console.print()
    for remark in remarks:
        console.print(SafeText(f"{remark}."), soft_wrap=True)


def summary_lines(timeline: Timeline, analysed: AnalysedSnapshot) -> Iterator[str]:
    """The same in short, as lines without a table."""
    yield f"{counts_in_words(timeline)}."
    for pipeline in shown_pipelines(timeline)[:SHOWN_PIPELINES]:
        yield f"{pipeline_title(pipeline)}: {limiting_in_words(pipeline)}"
    yield from (f"{remark}." for remark in (*remarks_on(timeline), *map(capitalised, analysed.starving)))


def shown_pipelines(timeline: Timeline) -> list[Pipeline]:
    """The pipelines with several chains: a single one says nothing about throughput."""
    return [pipeline for pipeline in timeline.pipelines if len(pipeline.chains) > 1]


def counts_in_words(timeline: Timeline) -> str:
    """``11 attempts of tasks in 10 s, in 3 processes on 1 node: 10 finished, 0 failed, 0 running, 1 pending``."""
    tracks = [track for track in timeline.tracks if track.group != NOT_STARTED]
    nodes = len({track.group for track in tracks})
    attempts = [attempt for attempt in timeline.attempts if attempt.task.kind != "DRIVER_TASK"]
    states = Counter(attempt.state for attempt in attempts)
    counts = ", ".join(f"{states[state]:,} {state}" for state in ("finished", "failed", "running", "pending"))
    where = f"{plural(len(tracks), 'process', 'processes')} on {plural(nodes, 'node')}"
    span = duration(timeline.ended_at - timeline.began_at)
    return f"{plural(len(attempts), 'attempt')} of tasks in {span}, in {where}: {counts}"


def pipeline_title(pipeline: Pipeline) -> str:
    """``5 chains through load → train, and 2 through a part of it``."""
    steps = " → ".join(step.name for step in pipeline.steps)
    parts = f", and {len(pipeline.parts):,} through a part of it" if pipeline.parts else ""
    return f"{plural(len(pipeline.chains), 'chain')} through {steps}{parts}"


def limiting_in_words(pipeline: Pipeline) -> str:
    """``step_b limits the throughput: ...``, or that no step does."""
    step = pipeline.limiting
    if step is None:
        return "No step clearly limits the throughput."
    use = f"{step.at_once} at once {'is' if step.at_once == 1 else 'are'} in use {step.utilisation:.0%} of the time"
    wait = short_duration(step.mean_wait_s)
    return f"{step.name} limits the throughput: {use}, and a call waits {wait} for it on average."


def _steps(pipeline: Pipeline) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in STEP_COLUMNS:
        table.add_column(Text(title, "dim"), justify="left" if title == "step" else "right", no_wrap=True)
    for step in pipeline.steps:
        table.add_row(*map(SafeText, step_cells(step)))
    return table


def step_cells(step: Step) -> tuple[str, ...]:
    """The cells of a step, one for each of :data:`STEP_COLUMNS`."""
    times = map(short_duration, (step.mean_s, step.longest_s, step.mean_wait_s, step.longest_wait_s))
    return (step.name, f"{step.attempts:,}", *times, f"{step.at_once}", f"{step.utilisation:.0%}")


def remarks_on(timeline: Timeline) -> Iterator[str]:
    """What is missing or not known."""
    history = timeline.history.history
    lost = [f"{history.dropped:,} that Ray had no room for"] if history.dropped else []
    lost += [f"{history.left_out:,} older ones, which were not requested"] if history.left_out else []
    if lost:
        yield f"Attempts that are missing: {listed(lost)}"
    links = timeline.linked.links
    if timeline.chains and (unknown := links.unclear + links.unexplained):
        yield f"It is not known what made the arguments of {plural(unknown, 'attempt')} in these pipelines"
    if not timeline.history.index.snapshot.has_one_time:
        yield "Clocks of hosts differ: times are aligned by what is known of the difference, and may be off by the rest"
