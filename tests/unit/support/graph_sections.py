"""Sections of a page that draw a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.snapshot import Snapshot
from dstack.report.page.section import ReportData, Section


def graph_section(
    section: Callable[[ReportData], Section | None], chart_id: str, snapshot: Snapshot
) -> tuple[Section, dict[str, Any], dict[str, Any]]:
    """The section, its boxes and its lines."""
    found = section(ReportData(AnalysedSnapshot.of(snapshot)))
    assert found is not None
    chart: Any = found.charts[chart_id]
    sources = {one.name: one.data_source.data for one in chart.renderers}
    return found, sources["boxes"], sources["links"]
