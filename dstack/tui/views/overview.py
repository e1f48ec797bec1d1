"""The panel above the findings: jobs, tasks per second, load of the nodes, what is slow and what is stuck."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text
from textual.widgets import Static

from dstack.analysis.findings import is_stuck
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import Activity, Load, activity_of, jobs_in_words
from dstack.model.diagnosis import Diagnosis, Finding, Step
from dstack.model.profile import Sampled
from dstack.model.snapshot import Job
from dstack.report.critical_path_text import most_of_path_in_words, quick_path
from dstack.report.finding import kind_in_words, standing, status
from dstack.report.profile_text import most_time_in_words, newest
from dstack.report.rich_text import SafeText
from dstack.report.summaries import STYLE_OF_VERDICT, outside_in_words
from dstack.tui.views.base import verdict_in_colour
from dstack.tui.widgets.time_axis import clock
from dstack.words import base_name, duration, plural

LEVELS = "▁▂▃▄▅▆▇█"
PARTS = " ▏▎▍▌▋▊▉█"
LABEL = 7
WIDE, TALL = 110, 34
"""From so many columns, bars and the sparkline are longer; from so many rows on there are more nodes."""
FEW_NODES, MANY_NODES = 1, 6
FULL = 0.9
"""A share of memory that stands out."""


class Overview(Static):
    """One row for each of these; of several nodes, those with the highest load."""

    DEFAULT_CSS = """
    Overview {
        height: auto; max-height: 12; padding: 0 1; background: $boost;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[AnalysedSnapshot, Activity, str] | None = None

    def show(self, analysed: AnalysedSnapshot, live: Activity | None, recordings: Iterable[Sampled] = ()) -> None:
        """Show a snapshot, with the state of the last poll if there is one."""
        if self._of is None or self._of[0] is not analysed:
            self._of = analysed, activity_of(analysed), most_time(analysed, recordings)
        width, height = self.app.size
        _, activity, most = self._of
        nodes = MANY_NODES if height >= TALL else FEW_NODES
        self.update(Text("\n").join(overview_rows(analysed, live or activity, width, nodes, most)))


def most_time(analysed: AnalysedSnapshot, recordings: Iterable[Sampled]) -> str:
    """Where most time went, by the newest profile, else by the critical path; empty if not known."""
    profile = newest(recordings)
    by_profile = most_time_in_words(profile) if profile else ""
    return by_profile or most_of_path_in_words(analysed.diagnosis, quick_path(analysed))


def overview_rows(
    analysed: AnalysedSnapshot, activity: Activity, width: int, nodes: int, most: str = ""
) -> Iterator[Text]:
    """The rows, for a terminal of so many columns, with at most so many nodes; and where most time went, if known."""
    yield _row("Job").append_text(_jobs(activity.jobs, activity.at))
    yield _row("Tasks").append_text(_tasks(activity, 40 if width >= WIDE else 16))
    loads = sorted(activity.loads, key=_busiest, reverse=True)
    bar = 16 if width >= WIDE else 8
    for number, load in enumerate(loads[:nodes]):
        row = _row("Nodes" if number == 0 and loads[1:] else "" if number else "Node").append_text(_load(load, bar))
        others = len(loads) - nodes if number == nodes - 1 else 0
        yield row.append(f"  {plural(others, 'more node')}", "dim") if others > 0 else row
    findings = analysed.diagnosis.findings
    stuck = [one for one in findings if _is_stuck_or_stalled(one)]
    slow = SafeText(most) or _slow(analysed, [one for one in findings if not _is_stuck_or_stalled(one)])
    if slow:
        yield _row("Slow").append_text(slow)
    if stuck or not slow:
        yield _row("Stuck").append_text(_stuck(analysed.diagnosis, stuck))


def _is_stuck_or_stalled(finding: Finding) -> bool:
    return is_stuck(finding) or finding.kind == "stalled"


def _row(label: str) -> SafeText:
    return SafeText().append(label.ljust(LABEL), "bold")


def _jobs(jobs: Sequence[Job], now: float) -> Text:
    text = SafeText(jobs_in_words(jobs))
    if jobs and (started_at := jobs[0].started_at):
        text.append(f"  since {clock(started_at)}, {duration(max(0.0, now - started_at))}", "dim")
    return text


def _tasks(activity: Activity, columns: int) -> Text:
    text = SafeText()
    rates = activity.rates[-columns:]
    if rates[1:]:
        text.append(sparkline(rates), "cyan").append("  ")
    per_s = activity.per_s
    text.append("rate unknown" if per_s is None else f"{per_s:,.1f}/s" if per_s < 100 else f"{per_s:,.0f}/s", "bold")
    text.append(f"  {activity.running:,} running  {activity.pending:,} pending  {plural(activity.workers, 'worker')}")
    if activity.over_s and columns > 16:
        text.append(f"  (last {duration(activity.over_s)})", "dim")
    return text


def sparkline(rates: Sequence[float | None]) -> str:
    """A column for each rate, the highest one full; blank where it is unknown."""
    top = max((rate for rate in rates if rate is not None), default=0.0) or 1.0
    return "".join(" " if rate is None else LEVELS[round(rate / top * (len(LEVELS) - 1))] for rate in rates)


def bar_of(share: float, width: int) -> str:
    """A bar of so many cells, full for 1."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    return (PARTS[8] * whole + (PARTS[part] if part else "")).ljust(width, "·")


def _load(load: Load, width: int) -> Text:
    text = SafeText(load.name.ljust(16))
    shares = (("CPU", load.cpu), ("MEM", load.memory), ("GPU", load.gpu), ("GPU MEM", load.gpu_memory))
    for title, share in shares:
        if share is not None:
            style = "yellow" if title.endswith("MEM") and share >= FULL else "cyan"
            text.append(f" {title} ", "dim").append(bar_of(share, width), style).append(f" {share:>4.0%} ")
    return text


def _busiest(load: Load) -> float:
    return max(share or 0.0 for share in (load.cpu, load.memory, load.gpu, load.gpu_memory))


def _slow(analysed: AnalysedSnapshot, open_findings: Sequence[Finding]) -> Text:
    """The first final blocker with a line of a chain that may end; without a chain, what runs and rests, if any."""
    if open_findings:
        first = open_findings[0]
        blocker = next((step for step in first.brief if step.file), Step(text=first.summary))
        style = STYLE_OF_VERDICT[verdict_in_colour(first.kind)] if first.is_slow else ""
        text = SafeText().append(f"{base_name(blocker.file)}:{blocker.line}  " if blocker.file else "", "cyan")
        text.append(blocker.text, style).append(f"  {blocker.source}" if blocker.source else "", "dim")
        return text.append(_more(open_findings), "dim")
    diagnosis = analysed.diagnosis
    return SafeText("" if diagnosis.verdict == "stalled" else _outside(diagnosis), "dim")


def _outside(diagnosis: Diagnosis) -> str:
    return "; ".join(outside_in_words(diagnosis.outside))


def _stuck(diagnosis: Diagnosis, stuck: Sequence[Finding]) -> Text:
    if not stuck and diagnosis.verdict == "stalled":
        return SafeText().append("likely", STYLE_OF_VERDICT["stalled"]).append(f": {_outside(diagnosis)}")
    if not stuck:
        return SafeText("nothing", "green")
    first = stuck[0]
    sure = is_stuck(first)
    title, state = (kind_in_words(first.kind), status(first)) if sure else ("likely", standing(first) or first.summary)
    text = SafeText().append(title, STYLE_OF_VERDICT[verdict_in_colour(first.kind)])
    return text.append(f"; {state}" if sure else f": {state}").append(_more(stuck), "dim")


def _more(findings: Sequence[Finding]) -> str:
    return f"  and {plural(len(findings) - 1, 'more finding')}" if findings[1:] else ""
