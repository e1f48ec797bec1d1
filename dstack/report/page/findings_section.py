"""The findings, each with its diagram and its fix; and, at the end of a page, what was not observed and the timing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dstack.analysis.findings import is_stuck
from dstack.analysis.findings.failures import step as step_of_failure
from dstack.analysis.findings.recorder_dumps import step as step_of_dumps
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Entry, Finding, Step
from dstack.model.profile import Profile
from dstack.model.snapshot import Node, Snapshot
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Process
from dstack.report.check_json import pauses_ms
from dstack.report.critical_path_text import best_change_in_words
from dstack.report.finding import advice_rows, assumption_rows, kind_in_words, picture, remark_rows, status_sentence
from dstack.report.logs_text import log_rows, tails_of_finding
from dstack.report.not_observed import ACCESS_WORDS, gaps_in_words, other_failures
from dstack.report.page.section import ReportData, Section, data_element, render
from dstack.report.prediction_text import possible_text
from dstack.report.profile_text import profile_shortfalls
from dstack.report.rich_text import Row, SafeText, place_of, plain_text, print_rows
from dstack.report.summaries import SHOWN_FAILURES, missing_attempts, shortfalls
from dstack.words import capitalised, duration, plural, shortly

SHOWN_FINDINGS = 20
SHOWN_GAPS = 20
SHOWN_NODES = 5
WIDTH = 100
LOG_WIDTH = 110


@dataclass(frozen=True, slots=True)
class FindingLine:
    """One row of a diagram, or a remark; ``stack`` is the id of the element with its stack."""

    row: Entry | Step
    location: str
    stack: str | None

    @property
    def number(self) -> int | None:
        """The number of an entry, None for a remark."""
        return self.row.number if isinstance(self.row, Entry) else None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finding with its diagram in lines."""

    finding: Finding
    title: str
    status: str
    lines: tuple[FindingLine, ...]
    behind: tuple[FindingLine, ...]
    remarks: tuple[FindingLine, ...]
    assumed: tuple[str, ...]
    logs: tuple[str, ...]
    markdown: Markup


def section(data: ReportData) -> Section | None:
    """The findings, or what rests and failed beside waits that are in none; None if there is nothing to say."""
    diagnosis = data.analysed.diagnosis
    dumped = [step_of_dumps(diagnosis.dumped)] if diagnosis.dumped else []
    beside = (*dumped, *diagnosis.explanation, *map(step_of_failure, diagnosis.failed_before))
    change = best_change_in_words(diagnosis, data.what_if)
    if not diagnosis.findings and not beside and not data.analysed.starving and not change:
        return None
    drawn = [_drawn(data.analysed, finding, data.stack_ids) for finding in diagnosis.findings[:SHOWN_FINDINGS]]
    body = render(
        "findings.html",
        drawn=drawn,
        left_out=len(diagnosis.findings) - len(drawn),
        failures=list(_lines(beside, data.stack_ids)),
        change=change,
        starving=data.analysed.starving,
    )
    return Section("findings", "Findings", body, count=len(diagnosis.findings))


def possible_section(data: ReportData) -> Section | None:
    """The deadlocks that another order of the same calls could reach; None if none is known."""
    if data.analysed.snapshot.history is None or not data.analysed.prediction.possible:
        return None
    found = data.analysed.prediction.possible
    texts = [possible_text(one).splitlines() for one in found[:SHOWN_FINDINGS]]
    body = render("possible.html", texts=texts, left_out=len(found) - len(texts))
    return Section("possible", "Possible deadlocks", body, count=len(found))


def _drawn(analysed: AnalysedSnapshot, finding: Finding, stacks: Mapping[Key, str]) -> Drawn:
    diagram = finding.diagram
    is_assumed = is_stuck(finding) and not finding.confirmed
    return Drawn(
        finding,
        kind_in_words(finding.kind),
        status_sentence(finding),
        tuple(_lines(diagram.rows, stacks)),
        tuple(_lines(diagram.behind, stacks)),
        tuple(_lines(diagram.remarks, stacks)),
        finding.assumed if is_assumed else (),
        _logs(analysed, finding),
        data_element(_markdown(analysed, finding), "markdown"),
    )


def _markdown(analysed: AnalysedSnapshot, finding: Finding) -> str:
    """The finding for an issue or a chat; all text of the cluster is within the block of code."""
    about = f"Ray {analysed.snapshot.ray_version}, dstack {analysed.snapshot.dstack_version}"
    parts = (
        [Row("", "", SafeText(text)) for text in (finding.summary, status_sentence(finding)) if text],
        list(picture(finding)),
        [*advice_rows(finding), *assumption_rows(finding)],
        [row for step in finding.diagram.remarks for row in remark_rows(step)],
        [Row("", "", SafeText(about))],
    )
    block = "\n\n".join(_text(rows, WIDTH).rstrip() for rows in parts if rows)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", block)), default=2))
    return f"**{capitalised(kind_in_words(finding.kind))}** found by dstack:\n\n{fence}text\n{block}\n{fence}\n"


def _logs(analysed: AnalysedSnapshot, finding: Finding) -> tuple[str, ...]:
    return tuple(_text(list(log_rows(analysed, tails_of_finding(analysed, finding))), LOG_WIDTH).splitlines())


def _text(rows: Sequence[Row], width: int) -> str:
    return plain_text(lambda console: print_rows(console, rows), width)


def _lines(
    rows: Iterator[Step] | tuple[Entry | Step, ...] | tuple[Step, ...], stacks: Mapping[Key, str]
) -> Iterator[FindingLine]:
    for row in rows:
        location = place_of(row.file, row.line) if row.file is not None and row.line is not None else ""
        yield FindingLine(row, location, stacks.get(row.vertex) if row.vertex is not None else None)


def coverage_section(data: ReportData) -> Section:
    """The section; there always is one, as a reader has to know that all was observed."""
    analysed = data.analysed
    snapshot, coverage = analysed.snapshot, analysed.diagnosis.coverage
    gaps = gaps_in_words(analysed)
    failures = other_failures(analysed, gaps)
    remarks = list(_remarks(data))
    is_whole = not (analysed.diagnosis.incomplete or gaps or failures)
    body = render(
        "coverage.html",
        is_whole=is_whole,
        conclusion=_conclusion(analysed, bool(gaps), bool(failures)),
        coverage=coverage,
        access=[
            f"{plural(count, 'process', 'processes')} {ACCESS_WORDS[way]}" for way, count in coverage.access.items()
        ],
        gaps=[gap.text for gap in gaps[:SHOWN_GAPS]],
        more_gaps=len(gaps) - SHOWN_GAPS,
        failures=failures[:SHOWN_FAILURES],
        more_failures=len(failures) - SHOWN_FAILURES,
        remarks=remarks,
        timing=list(_timing(snapshot)),
        plural=plural,
    )
    count = len(gaps) + len(failures) or None
    return Section("coverage", "What was not observed", body, count=count, is_line=is_whole)


def _conclusion(analysed: AnalysedSnapshot, has_gaps: bool, has_failures: bool) -> str:
    """What the coverage means for the verdict."""
    if analysed.diagnosis.incomplete:
        return "Incomplete: something that was not observed could change the verdict."
    if has_gaps:
        return "Not everything was observed, but that cannot change the verdict: it is a deadlock."
    if has_failures:
        return "Not everything was observed, but nothing of it could change the verdict."
    return "All workers, drivers and nodes were observed."


def _remarks(data: ReportData) -> Iterator[str]:
    """What else is missing or not exact."""
    snapshot = data.analysed.snapshot
    yield from _samples(data.analysed)
    yield from _history(snapshot)
    yield from _clocks(snapshot)
    for name, sampled in data.recordings:
        if isinstance(sampled, Profile):
            yield from (f"Profile {name}: {text}" for text in profile_shortfalls(sampled))
        else:
            yield from (f"Recording {name}: {text}" for text in shortfalls(sampled))


def _samples(analysed: AnalysedSnapshot) -> Iterator[str]:
    snapshot = analysed.snapshot
    if len(snapshot.samples) < 2:
        count = "No sample was" if not snapshot.samples else "Only one sample was"
        yield f"{count} taken: no wait is confirmed."
    found = analysed.merged_index.processes.values()
    processes = [process for one in found for process in one.family]
    if torn := sum(thread.torn for process in processes for thread in process.threads):
        yield f"{plural(torn, 'thread')} ran during every reading of the stack: its frames may not belong together."
    if left_out := sum(process.children_left_out for process in processes):
        yield f"{plural(left_out, 'child process', 'child processes')} not read: without Python, or over the limit."


def _history(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.history is None:
        remedy = " dstack snapshot -o FILE includes it." if snapshot.lack_of_events is None else ""
        yield f"The history of tasks is missing, so there is no timeline.{remedy}"
    elif lost := missing_attempts(snapshot.history):
        yield f"Attempts of tasks that are missing in the history: {lost}."


def _clocks(snapshot: Snapshot) -> Iterator[str]:
    differing = [node for node in snapshot.nodes if node.has_another_time]
    if differing:
        clocks = shortly(list(map(_clock, differing)), shown=SHOWN_NODES)
        yield f"Clocks differ, so times and durations across hosts may be off: {clocks}."
    unknown = [f"node {node.ip}" for node in snapshot.nodes if node.alive and node.clock_ahead_s is None]
    if unknown and len(snapshot.nodes) > 1:
        yield f"It is not known whether these clocks agree with dstack's: {shortly(unknown, shown=SHOWN_NODES)}."


def _clock(node: Node) -> str:
    ahead_s = node.clock_ahead_s or 0.0
    return f"node {node.ip} at least {duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"


def _timing(snapshot: Snapshot) -> Iterator[str]:
    """How long it took, and whether processes were paused."""
    yield f"The snapshot took {duration(snapshot.total_s)}."
    for number, sample in enumerate(snapshot.samples, 1):
        read = sum(_is_read(worker.process) for worker in sample.workers)
        took = f"{sample.ended_s - sample.began_s:.2f} s"
        yield f"Sample {number} took {took} and read {plural(read, 'process', 'processes')}."
    if snapshot.readings:
        yield f"{plural(len(snapshot.readings), 'reading')} in between, of processes that may poll."
    paused = [pause for pause in pauses_ms(snapshot) if pause]
    if paused:
        yield f"dstack made {plural(len(paused), 'pause')} of at most {max(paused):.0f} ms in the processes it read."
    else:
        yield "No process was paused."


def _is_read(process: Process | None) -> bool:
    return process is not None and bool(process.threads)
