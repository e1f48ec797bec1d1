"""The ends of logs as rows: what each process printed last, and the lines before it that say something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dstack.analysis.findings.last_words import MEANINGS, Logs, without_time
from dstack.analysis.stacks.stack_tree import TextFilter
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Finding
from dstack.observed.node import LogKind, LogLine, LogTail
from dstack.report.rich_text import Row, SafeText, place_of
from dstack.words import duration, grouped, time_of_day, times

INDENT = "  "
STYLES: dict[LogKind, str] = {"plain": "", "warning": "yellow"}
TIME_WIDTH = len("03:12:40  ")


def tails_of_workers(analysed: AnalysedSnapshot, worker_ids: Iterable[str]) -> list[LogTail]:
    """The logs of these workers and drivers, in their order."""
    by_worker = grouped((tail.worker_id, tail) for tail in analysed.snapshot.log_tails)
    return [tail for worker_id in worker_ids for tail in by_worker.get(worker_id, ())]


def tails_of_nodes(analysed: AnalysedSnapshot, words: TextFilter) -> list[LogTail]:
    """The logs of the raylets and agents of the nodes with these words, and what workers printed that ended there."""
    about = {
        node.node_id: f"raylet agent node {node.ip} {node.hostname} {node.node_id}" for node in analysed.snapshot.nodes
    }
    return [tail for tail in analysed.snapshot.log_tails if tail.node_id and words.among(about.get(tail.node_id, ""))]


def tails_of_finding(analysed: AnalysedSnapshot, finding: Finding) -> list[LogTail]:
    """The logs of the processes of a finding: those that are named for what they printed, then its members."""
    vertices = analysed.diagnosis.vertices
    keys = (*(blocker.vertex for blocker in finding.final_blockers), *finding.members, *finding.blocked_behind)
    of_waits = (vertices[key].worker_id for key in keys if key in vertices)
    named = (words.worker_id for words in finding.last_words)
    return tails_of_workers(analysed, dict.fromkeys(one for one in (*named, *of_waits) if one))


def log_rows(analysed: AnalysedSnapshot, tails: Iterable[LogTail]) -> Iterator[Row]:
    """Each process with its logs, each log with its lines."""
    logs = Logs(analysed.merged_index)
    for at, (writer, its) in enumerate(grouped((logs.writer(tail), tail) for tail in tails).items()):
        if at:
            yield Row("", "", SafeText())
        yield Row("", "", SafeText(writer, "bold"))
        for tail in its:
            yield Row(INDENT, INDENT, _title(analysed, logs, tail))
            yield Row(2 * INDENT, 2 * INDENT, SafeText(tail.path, "dim"))
            for line in tail.lines:
                yield from _rows(logs, tail, line)


def _title(analysed: AnalysedSnapshot, logs: Logs, tail: LogTail) -> SafeText:
    """``stderr, last written 2 min ago``."""
    ago = analysed.snapshot.taken_at - logs.written_at(tail)
    written = f", last written {duration(ago)} ago" if ago >= 0 and analysed.snapshot.has_one_time else ""
    return SafeText().append(tail.stream, "cyan").append(written, "dim")


def _rows(logs: Logs, tail: LogTail, line: LogLine) -> Iterator[Row]:
    at = logs.time_of(tail, line)
    time = f"{time_of_day(at)}  " if line.at and at else " " * TIME_WIDTH
    over = f" in {duration(line.at - line.first_at)}" if line.at and line.first_at else ""
    remarks = (MEANINGS.get(line.kind, ""), f"{times(line.count)}{over}" if line.count > 1 else "")
    text = SafeText().append(f"{line.writer} " if line.writer else "", "dim")
    text.append(without_time(line.text), STYLES.get(line.kind, "red"))
    if remark := "; ".join(filter(None, remarks)):
        text.append(f"  ({remark})", "dim")
    place = (line.file, line.line) if line.file and line.line else None
    yield Row(f"{INDENT}{INDENT}{time}", " " * (2 * len(INDENT) + TIME_WIDTH), text, place=place)
    if place:
        indent = " " * (2 * len(INDENT) + TIME_WIDTH)
        yield Row(indent, indent, SafeText(place_of(*place), "cyan"), place=place)
