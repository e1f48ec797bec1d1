"""Summaries in sentences: of a verdict, of checks by ``dstack doctor``, of failures, recordings and timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dstack.analysis.findings.failures import headline as failures_in_headline
from dstack.analysis.naming.ends import halt_in_words
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Check, Diagnosis, IdleActors, Level, NoSample, OutsideWait, Progress, Verdict
from dstack.model.recording import Recording
from dstack.model.snapshot import Snapshot, TaskHistory
from dstack.observed.node import Failure
from dstack.report.rich_text import SafeText, wrapped
from dstack.words import SHOWN, capitalised, duration, grouped, listed, plural, short_duration, shortly, times_of, word

if TYPE_CHECKING:
    from rich.table import Table

    from dstack.analysis.history.chains import Pipeline, PipelineStep
    from dstack.analysis.history.simulation import Change
    from dstack.analysis.views.timeline import Timeline

NOTABLE = 0.02
"""A share of samples that is worth a sentence."""
SHOWN_FAILURES = 100
"""The failures to observe that a front end lists."""
STEP_COLUMNS = ("step", "calls", "mean", "max", "mean wait", "max wait", "at once", "in use")
MARKS: dict[Level, tuple[str, str]] = {"ok": ("✔", "green"), "limit": ("!", "yellow"), "failure": ("✖", "bold red")}
"""The marks differ without colours, too."""
INDENT = 4
"""The width of a mark with the spaces around it."""
NO_HISTORY = "This snapshot has no history of tasks. Take one with: dstack snapshot -o FILE"
SHOWN_OUTSIDE = 2
QUIET_S = 30.0
"""How long no task has finished where that is worth a word."""
STYLE_OF_VERDICT: dict[Verdict, str] = {
    "deadlock": "bold red",
    "hang": "bold red",
    "stalled": "bold yellow",
    "unknown": "bold magenta",
    "running": "bold cyan",
    "idle": "bold green",
}


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one line, without its word."""
    count = len(diagnosis.findings)
    if diagnosis.verdict == "unknown":
        return _unknown(diagnosis)
    if not count:
        return _without_findings(diagnosis)
    first = diagnosis.findings[0]
    if diagnosis.is_stuck:
        return first.summary if first.confirmed else f"suspected: {first.summary}"
    if diagnosis.verdict != "running":
        return first.summary
    return "; ".join(part for part in (_unread(diagnosis), pace(diagnosis.progress), first.summary) if part)


def pace(progress: Progress | None) -> str:
    """``3.4 tasks/s finish``, ``no task finished for 5 min``; empty if unknown, or if the last one ended lately."""
    if progress is None:
        return ""
    if progress.idle_s is not None and not progress.is_lively:
        return f"no task finished for {duration(progress.idle_s)}" if progress.idle_s >= QUIET_S else ""
    if progress.per_s:
        rate = f"{progress.per_s:.2g}" if progress.per_s < 9.95 else f"{progress.per_s:,.0f}"
        return f"{rate} tasks/s finish"
    if not progress.finished:
        return ""
    return f"{plural(progress.finished, 'task')} finished within {duration(progress.watched_s)}"


def _cpus(progress: Progress | None) -> str:
    """``its processes use 1.2 CPUs``."""
    if progress is None or not progress.cpu_s or not progress.watched_s:
        return ""
    return f"processes of the application use {progress.cpu_s / progress.watched_s:.1f} CPUs"


def _unread(diagnosis: Diagnosis) -> str:
    return "not everything was read" if diagnosis.incomplete else ""


def _unknown(diagnosis: Diagnosis) -> str:
    """That nothing, or too little, was read; the reasons are among what was not observed."""
    workers, failures = diagnosis.coverage.workers, diagnosis.coverage.failures
    starting = (one.reason for one in failures if one.stage == "control plane" and one.cause == "starting")
    if reason := next(starting, None):
        return f"nothing was read: {reason}"
    if not workers.total or any(isinstance(gap, NoSample) for gap in diagnosis.gaps):
        return "nothing was read"
    return (
        f"too little was read: {workers.observed} of {plural(workers.total, 'worker or driver', 'workers and drivers')}"
    )


def _without_findings(diagnosis: Diagnosis) -> str:
    """What runs, rests, and waits for what is outside of Ray, and the actors that execute nothing."""
    does = [*outside_in_words(diagnosis.outside)]
    if diagnosis.idle and diagnosis.verdict != "stalled":
        does.append(f"idle: {shortly([_idle_actors(one) for one in diagnosis.idle])}")
    if not does:
        whose = f" of job {diagnosis.job}" if diagnosis.job is not None else ""
        does.append(f"nothing{whose} runs or waits" if diagnosis.coverage.workers.total else "no driver is connected")
    failed = failures_in_headline(diagnosis.failed_before)
    is_named = any(one.does == "runs" for one in diagnosis.outside)
    moves = pace(diagnosis.progress) or (
        "" if is_named or diagnosis.verdict != "running" else _cpus(diagnosis.progress)
    )
    parts = (_unread(diagnosis), moves, f"{'; '.join(does)}{failed}")
    return "; ".join(filter(None, parts))


def _idle_actors(idle: IdleActors) -> str:
    """``2 replicas of Serve deployment Shop``, ``3 x actor Cache``."""
    if idle.unit:
        return f"{plural(idle.count, idle.unit)} of {idle.name}"
    return times_of(idle.name, idle.count)


def outside_in_words(waits: Sequence[OutsideWait]) -> Iterator[str]:
    """``4 Worker.step wait in threading.Event.wait (train.py:12)``, and how many others there are."""
    for wait in waits[:SHOWN_OUTSIDE]:
        what = times_of(wait.name, wait.count) if wait.name else plural(wait.count, wait.kind)
        yield f"{what} {_does(wait)}"
    others = sum(wait.count for wait in waits[SHOWN_OUTSIDE:])
    if others:
        yield f"{others:,} more at other lines"


def _does(wait: OutsideWait) -> str:
    """``waits in queue.Queue.get (app.py:3)``, ``polls ray.nodes in the loop at app.py:20-25, and sleeps``."""
    file = wait.file.rpartition("/")[2] if wait.file else ""
    line = f" ({file}:{wait.line})" if file else ""
    if wait.does == "runs":
        return f"{word(wait.count, 'runs', 'run')}{line}"
    if wait.does == "waits":
        return f"{word(wait.count, 'waits', 'wait')} {f'for {wait.awaits}' if wait.awaits else f'in {wait.call}'}{line}"
    sleeps = word(wait.count, "sleeps", "sleep")
    if wait.loop is None:
        return f"{sleeps}{line}"
    place = f"in the loop at {file}:{wait.loop.first_line}-{wait.loop.last_line}"
    polled = listed(wait.loop.calls[:SHOWN_OUTSIDE])
    return f"{word(wait.count, 'polls', 'poll')} {polled} {place}, and {sleeps}" if polled else f"{sleeps} {place}"


def failures_in_words(snapshot: Snapshot, failures: Sequence[Failure]) -> list[str]:
    """All of them, those alike as one."""
    return [alike_in_words(snapshot, same) for same in alike_failures(failures)]


def alike_failures(failures: Iterable[Failure]) -> list[list[Failure]]:
    """The failures, those alike of several processes of a node, or in both samples, together."""
    alike = grouped(((failure.stage, failure.node_id, failure.reason, failure.remedy), failure) for failure in failures)
    return list(alike.values())


def alike_in_words(snapshot: Snapshot, alike: Sequence[Failure]) -> str:
    """Failures that are alike, as one."""
    return failure_in_words(snapshot, alike[0], processes=len({failure.pid for failure in alike if failure.pid}))


def failure_in_words(snapshot: Snapshot, failure: Failure, *, processes: int = 1) -> str:
    """What failed, where, why, after how long, and what to do about it; for one or several processes alike."""
    node = next((node for node in snapshot.nodes if node.node_id == failure.node_id), None)
    pid = f"{processes} processes, among them pid {failure.pid}" if processes > 1 else f"pid {failure.pid}"
    where = ", ".join(part for part in (pid if failure.pid else "", f"node {node.ip}" if node else "") if part)
    after = f" (after {failure.elapsed_s:.1f} s)" if failure.elapsed_s >= 0.1 else ""
    remedy = f" {failure.remedy}" if failure.remedy else ""
    halt = _halt_in_words(snapshot, failure) if processes == 1 else ""
    return f"{failure.stage}{f', {where}' if where else ''}: {failure.reason.rstrip('.')}{after}{halt}.{remedy}"


def _halt_in_words(snapshot: Snapshot, failure: Failure) -> str:
    """``; its process is stopped by a signal until SIGCONT``, if all samples show that of a worker."""
    workers = (one for sample in snapshot.samples for one in sample.workers if one.worker_id == failure.worker_id)
    halts = {worker.process.halt for worker in workers if worker.process}
    halt = halts.pop() if len(halts) == 1 else None
    return f"; its process is {halt_in_words(halt)}" if halt and halt.os_thread_id is None else ""


def recording_summary(recording: Recording) -> str:
    """``2,400 samples of 12 processes on 2 nodes in 10.0 s, at 20 Hz``."""
    samples = sum(count.samples for count in recording.counts)
    nodes = len({thread.node_id for thread in recording.threads})
    where = f" on {plural(nodes, 'node')}" if nodes else ""
    processes = plural(recording.coverage.processes, "process", "processes")
    how = f"in {recording.duration_s:.1f} s, at {recording.rate_hz:g} Hz"
    return f"{plural(samples, 'sample')} of {processes}{where} {how}"


def shortfalls(recording: Recording) -> Iterator[str]:
    """What was not recorded: missed, torn and dropped samples, and failures, equal ones together."""
    coverage = recording.coverage
    missed = coverage.wanted - coverage.taken
    if 0 < coverage.lowest_rate_hz < recording.rate_hz:
        rate = f"{coverage.lowest_rate_hz:.3g} Hz"
        yield f"A node recorded at {rate} for a time, to use little CPU: a sample then counts for several."
    if missed > NOTABLE * coverage.wanted:
        yield f"{missed:,} of {coverage.wanted:,} samples were missed: this host, or a node, was too busy."
    if coverage.torn:
        yield f"{plural(coverage.torn, 'sample')} left out: the stack changed while it was read."
    if coverage.left_out:
        yield f"{plural(coverage.left_out, 'sample')} left out: too many different stacks."
    reasons = Counter((failure.reason, failure.remedy) for failure in recording.failures)
    for (reason, remedy), count in reasons.most_common(5):
        where = plural(count, "process or node", "processes or nodes")
        yield f"{where} not recorded, or not completely: {reason}." + (f" {remedy}" if remedy else "")
    if len(reasons) > 5:
        yield f"{len(reasons) - 5} further reasons are left out."


def print_timeline_summary(
    console: Console, timeline: Timeline, analysed: AnalysedSnapshot, what_ifs: Sequence[Sequence[Change]] = ()
) -> None:
    """Print the summary, with a table of the steps of each pipeline, the critical path, and what changes would do."""
    from dstack.analysis.history.what_if import WhatIf
    from dstack.report.critical_path_text import print_critical_path

    console.print(SafeText(counts_in_words(timeline), "bold"), soft_wrap=True)
    pipelines = shown_pipelines(timeline)
    for pipeline in pipelines[:SHOWN]:
        console.print()
        console.print(SafeText(pipeline_title(pipeline)), soft_wrap=True)
        console.print(_steps(pipeline))
        console.print(SafeText(limiting_in_words(pipeline)), soft_wrap=True)
    if len(pipelines) > SHOWN:
        console.print(SafeText(f"and {plural(len(pipelines) - SHOWN, 'more pipeline')}", "dim"))
    if timeline.critical_path is not None:
        console.print()
        print_critical_path(console, timeline.critical_path, WhatIf(timeline.run, timeline.critical_path), what_ifs)
    if remarks := [*remarks_on(timeline), *map(capitalised, analysed.starving)]:
        console.print()
    for remark in remarks:
        console.print(SafeText(f"{remark}."), soft_wrap=True)


def summary_lines(timeline: Timeline, analysed: AnalysedSnapshot) -> Iterator[str]:
    """The same in short, as lines without a table, and without predictions."""
    from dstack.report.critical_path_text import path_in_words

    yield f"{counts_in_words(timeline)}."
    for pipeline in shown_pipelines(timeline)[:SHOWN]:
        yield f"{pipeline_title(pipeline)}: {limiting_in_words(pipeline)}"
    if timeline.critical_path is not None:
        yield path_in_words(timeline.critical_path)
    yield from (f"{remark}." for remark in (*remarks_on(timeline), *map(capitalised, analysed.starving)))


def shown_pipelines(timeline: Timeline) -> list[Pipeline]:
    """The pipelines with several chains: a single one says nothing about throughput."""
    return [pipeline for pipeline in timeline.pipelines if len(pipeline.chains) > 1]


def counts_in_words(timeline: Timeline) -> str:
    """``11 attempts of tasks in 10 s, in 3 processes on 1 node: 10 finished, 0 failed, 0 running, 1 pending``."""
    from dstack.analysis.views.timeline import NOT_STARTED

    tracks = [track for track in timeline.tracks if track.group != NOT_STARTED]
    nodes = {track.node_id for track in tracks if track.node_id}
    attempts = [attempt for attempt in timeline.attempts if attempt.task.kind != "DRIVER_TASK"]
    states = Counter(attempt.state for attempt in attempts)
    counts = ", ".join(f"{states[state]:,} {state}" for state in ("finished", "failed", "running", "pending"))
    on = f" on {plural(len(nodes), 'node')}" if nodes else ""
    where = f"{plural(len(tracks), 'process', 'processes')}{on}"
    span = duration(timeline.ended_at - timeline.began_at)
    stuck = sum(mark.is_stuck for attempt in attempts if (mark := timeline.mark_of.get(id(attempt))))
    never = f"; {stuck:,} of them can never proceed" if stuck else ""
    return f"{plural(len(attempts), 'attempt')} of tasks in {span}, in {where}: {counts}{never}"


def pipeline_title(pipeline: Pipeline) -> str:
    """``5 chains through load → train, and 2 through a part of it``."""
    steps = " → ".join(step.name for step in pipeline.steps)
    parts = f", and {len(pipeline.parts):,} through a part of it" if pipeline.parts else ""
    return f"{plural(len(pipeline.chains), 'chain')} through {steps}{parts}"


def limiting_in_words(pipeline: Pipeline) -> str:
    """``step_b limits the throughput: ...``, or that no step does, or which calls can never proceed."""
    step = pipeline.limiting
    if pipeline.stuck:
        calls = listed([f"{plural(one.stuck, 'call')} of {one.name}" for one in pipeline.stuck])
        return f"{calls} can never proceed, which limits the throughput."
    if step is None:
        return "No step clearly limits the throughput."
    use = f"{step.at_once} at once {'is' if step.at_once == 1 else 'are'} in use {step.utilisation:.0%} of the time"
    wait = short_duration(step.mean_wait_s)
    return f"{step.name} limits the throughput: {use}, and a call waits {wait} for it on average."


def _steps(pipeline: Pipeline) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in STEP_COLUMNS:
        table.add_column(Text(title, "dim"), justify="left" if title == "step" else "right", no_wrap=True)
    for step in pipeline.steps:
        table.add_row(*map(SafeText, step_cells(step)))
    return table


def step_cells(step: PipelineStep) -> tuple[str, ...]:
    """The cells of a step, one for each of :data:`STEP_COLUMNS`."""
    times = map(short_duration, (step.mean_s, step.longest_s, step.mean_wait_s, step.longest_wait_s))
    return (step.name, f"{step.attempts:,}", *times, f"{step.at_once}", f"{step.utilisation:.0%}")


def remarks_on(timeline: Timeline) -> Iterator[str]:
    """What is missing or not known."""
    if lack := timeline.history.index.snapshot.lack_of_events:
        yield in_words(lack).rstrip(".")
    if lost := missing_attempts(timeline.history.history):
        yield f"Attempts that are missing: {lost}"
    links = timeline.linked.links
    if timeline.chains and (unknown := links.unclear + links.unexplained):
        yield f"It is not known what made the arguments of {plural(unknown, 'attempt')} in these pipelines"
    if not timeline.history.index.snapshot.has_one_time:
        yield "Clocks of hosts differ: times are aligned by what is known of the difference, and may be off by the rest"


def no_history(snapshot: Snapshot) -> str:
    """Why a snapshot has no history, and what to do."""
    lack = snapshot.lack_of_events
    return f"This snapshot has no history of tasks. {in_words(lack)}" if lack else NO_HISTORY


def in_words(lack: Failure) -> str:
    """What task events lack, and what to do, as sentences."""
    return f"{capitalised(lack.reason)}. {lack.remedy or ''}".rstrip()


def missing_attempts(history: TaskHistory) -> str:
    """``2 that Ray had no room for and 7 older ones, which were not requested``; empty if the history has all."""
    lost = [f"{history.dropped:,} that Ray had no room for"] if history.dropped else []
    lost += [f"{history.left_out:,} older ones, which were not requested"] if history.left_out else []
    return listed(lost)


def print_checks(console: Console, title: str, checks: Sequence[Check]) -> None:
    """Print a group of checks under its title, and an empty line."""
    console.print(SafeText(title, "bold"))
    for check in checks:
        mark, style = MARKS[check.level]
        _print_row(console, Text(mark, style), SafeText(check.text))
        if check.remedy:
            _print_row(console, Text(" "), SafeText(check.remedy))
    console.print()


def _print_row(console: Console, mark: Text, text: Text) -> None:
    """Further lines of the text begin below the first one."""
    for row in wrapped(text, console, console.width - INDENT):
        console.print(Text.assemble("  ", mark, " ", row), soft_wrap=True)
        mark = Text(" ")
