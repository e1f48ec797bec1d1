"""The findings: for each its diagram, what is blocked behind it, and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dstack.analysis.findings import is_stuck
from dstack.analysis.findings.wording.failures import step as step_of_failure
from dstack.model.diagnosis import Entry, Finding, Step
from dstack.model.vertex_keys import Key
from dstack.report.finding import status_sentence
from dstack.report.page.section import ReportData, Section, render
from dstack.report.rich_text import place_of

SHOWN_FINDINGS = 20


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
    status: str
    lines: tuple[FindingLine, ...]
    behind: tuple[FindingLine, ...]
    remarks: tuple[FindingLine, ...]
    assumed: tuple[str, ...]


def section(data: ReportData) -> Section | None:
    """The findings, or what rests and failed beside waits that are in none; None if there is nothing to say."""
    diagnosis = data.analysed.diagnosis
    beside = (*diagnosis.explanation, *map(step_of_failure, diagnosis.failed_before))
    if not diagnosis.findings and not beside and not data.analysed.starving:
        return None
    drawn = [_drawn(finding, data.stack_ids) for finding in diagnosis.findings[:SHOWN_FINDINGS]]
    body = render(
        "findings.html",
        drawn=drawn,
        left_out=len(diagnosis.findings) - len(drawn),
        failures=list(_lines(beside, data.stack_ids)),
        starving=data.analysed.starving,
    )
    return Section("findings", "Findings", body)


def _drawn(finding: Finding, stacks: Mapping[Key, str]) -> Drawn:
    diagram = finding.diagram
    is_assumed = is_stuck(finding) and not finding.confirmed
    return Drawn(
        finding,
        status_sentence(finding),
        tuple(_lines(diagram.rows, stacks)),
        tuple(_lines(diagram.behind, stacks)),
        tuple(_lines(diagram.remarks, stacks)),
        finding.assumed if is_assumed else (),
    )


def _lines(
    rows: Iterator[Step] | tuple[Entry | Step, ...] | tuple[Step, ...], stacks: Mapping[Key, str]
) -> Iterator[FindingLine]:
    for row in rows:
        location = place_of(row.file, row.line) if row.file is not None and row.line is not None else ""
        yield FindingLine(row, location, stacks.get(row.vertex) if row.vertex is not None else None)
