"""A report as one page to share: what the text report says, and what the views of the terminal UI show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import localtime, strftime

from markupsafe import Markup

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.recording import Recording
from dstack.report.headline import headline
from dstack.report.page.document import document
from dstack.report.page.report_data import ReportData
from dstack.report.page.section import Section, render
from dstack.report.page.sections import calls, cluster, coverage, findings, flame, past, stacks, timeline, waits

SECTIONS: Sequence[Callable[[ReportData], Section | None]] = (
    findings.section,
    waits.section,
    stacks.section,
    flame.section,
    timeline.section,
    calls.section,
    cluster.section,
    past.section,
    coverage.section,
)
"""The sections in their order; one for which there is no data is left out."""


def report_page(
    analysed: AnalysedSnapshot,
    before: Iterable[AnalysedSnapshot] = (),
    recordings: Sequence[tuple[str, Recording]] = (),
) -> bytes:
    """The page, as UTF-8, about a snapshot; about those ``before`` it only what has changed."""
    data = ReportData(analysed, before, recordings)
    sections = [found for section in SECTIONS if (found := section(data))]
    diagnosis = analysed.diagnosis
    return document(f"{diagnosis.verdict.upper()} {headline(diagnosis)}", _heading(analysed), sections)


def _heading(analysed: AnalysedSnapshot) -> Markup:
    snapshot, diagnosis = analysed.snapshot, analysed.diagnosis
    return render(
        "heading.html",
        verdict=diagnosis.verdict,
        headline=headline(diagnosis),
        snapshot=snapshot,
        job=diagnosis.job,
        taken=strftime("%Y-%m-%d %H:%M:%S %z", localtime(snapshot.taken_at)),
        coverage=diagnosis.coverage,
    )
