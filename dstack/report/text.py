"""The report that is read at 3 a.m.: verdict, diagram, fix, then what was not observed; details only on request."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from time import localtime, strftime

from rich.console import Console
from rich.text import Text

from dstack.analysis.findings.kinds.stalled import NOT_PROVEN
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Diagnosis, Finding, Verdict
from dstack.model.snapshot import Snapshot
from dstack.report.check_json import pauses_ms
from dstack.report.details import print_details
from dstack.report.finding import advice_rows, assumption_rows, picture, remark_rows, status, status_sentence
from dstack.report.not_observed import gaps_in_words, other_failures
from dstack.report.rich_text import Row, SafeText, lines_of, print_lines, print_rows, wrapped
from dstack.report.summaries import STYLE_OF_VERDICT, headline
from dstack.words import SHOWN, capitalised, plural, word

WIDTH = 100
FIRST_LINES = 15
"""What a reader sees without searching; the fix is in these lines."""
MANY = 1000
"""No limit, as far as a reader cares."""
NOT_OBSERVED = "Not observed: "
SHORT: tuple[Verdict, ...] = ("unknown", "running", "idle")
"""The verdicts whose report is a few lines, without diagrams."""
SHORT_BLOCKERS, SHORT_FINDINGS = 2, 2
"""The final blockers, and the findings, that such a report shows."""


def print_report(console: Console, analysed: AnalysedSnapshot, *, details: bool = False) -> None:
    """Prints the report, 100 columns wide at most; with ``details`` all members, stacks and failures."""
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    diagnosis = analysed.diagnosis
    if not details and diagnosis.verdict in SHORT:
        _print_short(console, analysed)
        return
    head = [*_headline(console, diagnosis), *_status_lines(console, analysed)]
    print_lines(console, head)
    _print_failed_before(console, diagnosis)
    shown = diagnosis.findings if details else diagnosis.findings[:SHOWN]
    for number, finding in enumerate(shown, 1):
        _print_finding(console, finding, number, len(head))
    if len(shown) < len(diagnosis.findings):
        _print_rest(console, len(diagnosis.findings) - len(shown))
    if analysed.starving:
        console.print()
    _print_starving(console, analysed, SHOWN)
    if details:
        print_details(console, analysed)
    console.print()
    _print_foot(console, analysed, MANY if details else SHOWN, details=details)


def _print_short(console: Console, analysed: AnalysedSnapshot) -> None:
    """Where nothing is stuck: what runs, what everything depends on, and what to do if that is slow."""
    diagnosis = analysed.diagnosis
    print_lines(console, _headline(console, diagnosis))
    print_rows(console, (Row("", "", SafeText(note, "yellow")) for note in analysed.snapshot.notes))
    for step in (*diagnosis.remarks, *map(step_of_failure, diagnosis.failed_before)):
        print_rows(console, remark_rows(step))
    for finding in diagnosis.findings[:1]:
        for step in (*finding.brief[:SHORT_BLOCKERS], *map(step_of_failure, finding.failed_before)):
            print_rows(console, remark_rows(step))
        if finding.is_slow:
            print_rows(console, advice_rows(finding))
    for finding in diagnosis.findings[1:SHORT_FINDINGS]:
        print_rows(console, [Row("Also: ", " " * 6, SafeText(finding.summary))])
    if len(diagnosis.findings) > SHORT_FINDINGS:
        _print_rest(console, len(diagnosis.findings) - SHORT_FINDINGS)
    _print_starving(console, analysed, 1)
    _print_foot(console, analysed, 1)


def report_text(analysed: AnalysedSnapshot, *, details: bool = False) -> str:
    """The report as plain text, without colours; 100 columns wide at most."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        print_report(console, analysed, details=details)
    return captured.get()


def _headline(console: Console, diagnosis: Diagnosis) -> Iterator[Text]:
    lead = f"{diagnosis.verdict.upper()}  "
    first, *others = wrapped(SafeText(headline(diagnosis), "bold"), console, max(20, console.width - len(lead)))
    yield SafeText(lead, STYLE_OF_VERDICT[diagnosis.verdict]) + first
    for line in others:
        yield SafeText(" " * len(lead)) + line


def _status_lines(console: Console, analysed: AnalysedSnapshot) -> Iterator[Text]:
    """How sure the verdict is, since when it stands, and what the snapshot notes."""
    if status := _status(analysed.diagnosis):
        yield from lines_of(console, [Row("", "", SafeText(status))])
    yield from lines_of(console, (Row("", "", SafeText(note, "yellow")) for note in analysed.snapshot.notes))


def _status(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return f"{capitalised(NOT_PROVEN)}." if diagnosis.verdict == "stalled" else ""
    text = status_sentence(diagnosis.findings[0])
    if len(diagnosis.findings) > 1:
        text += f" This is the first of {len(diagnosis.findings):,} findings."
    return text.strip()


def _print_failed_before(console: Console, diagnosis: Diagnosis) -> None:
    """What rests, and what failed, beside waits that are in no finding."""
    if diagnosis.failed_before or diagnosis.explanation:
        console.print()
    for step in diagnosis.explanation:
        print_rows(console, remark_rows(step))
    for failed in diagnosis.failed_before:
        print_rows(console, remark_rows(step_of_failure(failed)))


def _print_finding(console: Console, finding: Finding, number: int, above: int) -> None:
    """One finding; the summary of the first is the headline.

    The fix is below the picture, but above one that is so high that the fix would not be in the first lines.
    """
    console.print()
    if number > 1:
        lead = f"{number}. {finding.kind}: "
        sure = f" ({text})" if (text := status(finding)) else ""
        title = SafeText(f"{finding.summary}{sure}", "bold")
        print_rows(console, [Row(lead, " " * len(lead), title)])
        console.print()
    drawn, fix = lines_of(console, picture(finding)), lines_of(console, advice_rows(finding))
    is_late = number == 1 and above + 1 + len(drawn) + 1 + len(fix) > FIRST_LINES
    remarks = [row for step in finding.diagram.remarks for row in remark_rows(step)]
    rest = lines_of(console, [*assumption_rows(finding), *remarks])
    parts = (fix, drawn, rest) if is_late else (drawn, fix, rest)
    for at, lines in enumerate(filter(None, parts)):
        print_lines(console, [*[Text()] * (at > 0), *lines])


def _print_rest(console: Console, count: int) -> None:
    console.print()
    console.print(SafeText(f"{plural(count, 'more finding')}: --details prints {word(count, 'it', 'them')}.", "dim"))


def _print_starving(console: Console, analysed: AnalysedSnapshot, shown: int) -> None:
    """What is free on one node while tasks wait for it on another."""
    lead = "Free elsewhere: "
    for text in analysed.starving[:shown]:
        print_rows(console, [Row(lead, " " * len(lead), SafeText(f"{text}."))])
    rest = len(analysed.starving) - shown
    if rest > 0:
        console.print(SafeText(f"{' ' * len(lead)}and {plural(rest, 'more such resource')}", "dim"))


def _print_foot(console: Console, analysed: AnalysedSnapshot, shown: int, *, details: bool = False) -> None:
    """What was not observed, then what was, and when."""
    _print_gaps(console, analysed, shown)
    snapshot, job = analysed.snapshot, analysed.diagnosis.job
    taken = strftime("%Y-%m-%d %H:%M:%S", localtime(snapshot.taken_at))
    where = f" at {snapshot.address}" if details else ""
    origin = f"Ray {snapshot.ray_version}{where}, {taken}{f', job {job} only' if job else ''}"
    text = f"{_covered(analysed.diagnosis)}, {', '.join(_timing(snapshot, details=details))}; {origin}"
    print_rows(console, [Row("Observed: ", " " * 10, SafeText(text, "dim"))])


def _print_gaps(console: Console, analysed: AnalysedSnapshot, shown: int) -> None:
    gaps = gaps_in_words(analysed)
    is_open = analysed.diagnosis.incomplete and not analysed.diagnosis.is_stuck
    lead = "Inconclusive: " if is_open else NOT_OBSERVED
    _print_reasons(console, lead, [gap.text for gap in gaps], shown, "more such reason")
    _print_reasons(console, NOT_OBSERVED, other_failures(analysed, gaps), shown, "more failure")


def _covered(diagnosis: Diagnosis) -> str:
    """``7 of 7 workers and drivers, 2 of 2 nodes``."""
    workers, nodes = diagnosis.coverage.workers, diagnosis.coverage.nodes
    read = f"{workers.observed} of {workers.total} workers and drivers, {nodes.observed} of {nodes.total} nodes"
    return f"{read}{_access(diagnosis)}"


def _print_reasons(console: Console, lead: str, reasons: Sequence[str], shown: int, others: str) -> None:
    for reason in reasons[:shown]:
        print_rows(console, [Row(lead, " " * len(lead), SafeText(reason, "yellow"))])
    if len(reasons) > shown:
        console.print(SafeText(f"{' ' * len(lead)}and {plural(len(reasons) - shown, others)} (--details)", "yellow"))


def _access(diagnosis: Diagnosis) -> str:
    """How many were read in which way, where any was read otherwise than by its memory."""
    access = diagnosis.coverage.access
    if not set(access) - {"memory", "state only"}:
        return ""
    return f" ({', '.join(f'{count} by {way}' for way, count in access.items())})"


def _timing(snapshot: Snapshot, *, details: bool) -> Iterator[str]:
    """How long it took, and the pauses; with ``details`` also the samples, and that there were no pauses."""
    samples = " + ".join(f"{sample.ended_s - sample.began_s:.2f}" for sample in snapshot.samples)
    yield f"{snapshot.total_s:.2f} s{f' (samples {samples} s)' if details else ''}"
    paused = [pause for pause in pauses_ms(snapshot) if pause]
    if paused:
        yield f"{plural(len(paused), 'pause')} of at most {max(paused):.0f} ms"
    elif details:
        yield "no pauses"
