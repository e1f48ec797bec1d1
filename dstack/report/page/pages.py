"""The whole pages: a report to share, or one flame graph; each is one file that requests nothing.

It runs no script but its own. Data is in elements that browsers do not execute, and the Content-Security-Policy allows
the page's scripts by their hashes, so no text of a cluster can run, wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from time import localtime, strftime

from bokeh.embed import json_item
from bokeh.resources import Resources
from markupsafe import Markup

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.profile import Profile, Sampled
from dstack.report.page import (
    calls_section,
    cluster_section,
    findings_section,
    flame_section,
    past_section,
    profile_section,
    stacks_section,
    timeline_section,
    waits_section,
)
from dstack.report.page.flame_section import Flame, flames_of_recording, profile_flame, section_of
from dstack.report.page.profile_section import lines_section, steps_section, traffic_section
from dstack.report.page.section import ReportData, Section, asset, data_element, render
from dstack.report.profile_text import profile_summary
from dstack.report.summaries import headline, recording_summary

SECTIONS: Sequence[Callable[[ReportData], Section | None]] = (
    findings_section.section,
    findings_section.possible_section,
    waits_section.section,
    stacks_section.section,
    flame_section.section,
    profile_section.newest_steps,
    profile_section.newest_lines,
    timeline_section.section,
    calls_section.section,
    cluster_section.section,
    past_section.section,
    findings_section.coverage_section,
)
"""The sections in their order; one for which there is no data is left out."""


def document(title: str, heading: Markup, sections: Sequence[Section]) -> bytes:
    """A whole page, as UTF-8: the heading, links to the sections, and the sections."""
    charts = [(element, plot) for one in sections for element, plot in one.charts.items()]
    scripts = [*([_bokeh()] if charts else []), _own_script(sections)]
    style = f"\n{asset('page.css')}\n"
    page = render(
        "page.html",
        title=title,
        heading=heading,
        sections=sections,
        policy=_policy(scripts, None if charts else style),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        charts=[_chart(element, plot) for element, plot in charts],
    )
    return page.encode(errors="backslashreplace")


def _chart(element: str, plot: object) -> Markup:
    return data_element(json_item(plot, element), "chart")  # type: ignore[arg-type]  # plots that Bokeh alone types


@cache
def _bokeh() -> str:
    return str(Resources(mode="inline", components=["bokeh"]).js_raw[0])


def _own_script(sections: Sequence[Section]) -> str:
    names = dict.fromkeys(name for one in sections for name in (one.library, one.script) if name)
    return "\n".join(["'use strict';", asset("page.js"), *map(asset, names), "drawCharts();"])


def _policy(scripts: Sequence[str], style: str | None) -> Markup:
    """Only these scripts and this style; Bokeh makes elements with styles of its own."""
    styles = "'unsafe-inline'" if style is None else _hash(style)
    return Markup(
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {styles}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def report_page(
    analysed: AnalysedSnapshot,
    before: Iterable[AnalysedSnapshot] = (),
    recordings: Sequence[tuple[str, Sampled]] = (),
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


def flame_page(flames: Sequence[Flame], title: str, subtitle: str = "", *others: Section | None) -> bytes:
    """The page, as UTF-8; of several flame graphs the first is shown, and the reader can choose another."""
    sections = [section_of("flame", "Flame graph" if others else title, flames), *filter(None, others)]
    return document(title, render("flame_heading.html", title=title, subtitle=subtitle), sections)


def sampled_page(sampled: Sampled) -> bytes:
    """The page of a profile or a recording, as UTF-8."""
    if isinstance(sampled, Profile):
        others = steps_section(sampled), lines_section(sampled), traffic_section(sampled)
        return flame_page([profile_flame(sampled)], f"Profile of {sampled.address}", profile_summary(sampled), *others)
    title = f"Flame graph of {sampled.address}"
    return flame_page(flames_of_recording(sampled), title, recording_summary(sampled))
