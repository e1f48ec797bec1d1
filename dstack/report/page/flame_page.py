"""A page with one flame graph, for recordings."""

from __future__ import annotations

from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.report.page.charts.flame_chart import Flame, flame_section
from dstack.report.page.document import document
from dstack.report.page.section import render


def flame_page(stacks: WeightedStacks, title: str, subtitle: str = "") -> bytes:
    """The page, as UTF-8."""
    section = flame_section("flame", title, [Flame(title, stacks)])
    return document(title, render("flame_heading.html", title=title, subtitle=subtitle), [section])
