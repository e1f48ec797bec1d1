"""A section of a page, and what it is made from: templates, graphs, and data for the page's scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dstack.analysis.history.critical_path import CriticalPath
from dstack.analysis.history.what_if import WhatIf
from dstack.analysis.views.all_stacks import ChosenStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.timeline import Timeline
from dstack.model.profile import Profile, Sampled
from dstack.model.vertex_keys import Key
from dstack.report.critical_path_text import shown_path
from dstack.report.graph_svg import Drawing, box_sample, link_sample, svg
from dstack.report.profile_text import newest
from dstack.words import visible

AS_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""JSON remains the same, and neither ends an element nor begins a comment."""
FOLDER = Path(__file__).resolve().parent


def data_element(data: object, css_class: str) -> Markup:
    """An element with data as JSON; its texts are as they are, so they have to be visible."""
    text = json.dumps(data, separators=(",", ":")).translate(AS_JSON)
    return Markup(f'<script type="application/json" class="{css_class}">') + Markup(text) + Markup("</script>")


@dataclass(frozen=True)
class Section:
    """One section of a page.

    ``key`` is its anchor, ``body`` its HTML. ``script`` names a file of ``assets`` that draws it or handles its clicks
    and keys, ``library`` what that needs. ``count`` follows the title in links, as the number of findings. A section
    that ``is_line`` has no heading.
    """

    key: str
    title: str
    body: Markup
    script: str | None = None
    library: str | None = None
    count: int | None = None
    is_line: bool = False


def render(template: str, **values: Any) -> Markup:
    """The HTML of a file of ``templates``; every text in it is made visible, and escaped."""
    return Markup(_templates().get_template(template).render(values))


def graph_body(template: str, drawing: Drawing, **values: Any) -> Markup:
    """The HTML of a section with a graph: its legend, its search and the drawing."""
    boxes = [(text, Markup(box_sample(style))) for text, style in drawing.box_names]
    links = [(text, Markup(link_sample(style))) for text, style in drawing.link_names]
    picture = Markup(svg(drawing)) if drawing.boxes else None
    return render(template, graph=picture, legend=[*boxes, *links], notes=drawing.notes, **values)


def asset(name: str) -> str:
    """The text of a file of ``assets``."""
    return (FOLDER / "assets" / name).read_text()


@cache
def _templates() -> Environment:
    environment = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FileSystemLoader(FOLDER / "templates"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["code"] = _with_code
    return environment


def _with_code(text: str) -> Markup:
    """The text with what is in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(visible(text)))))


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@dataclass(frozen=True)
class ReportData:
    """A snapshot, those of the same cluster before it in the order of time; recordings and profiles by name."""

    analysed: AnalysedSnapshot
    before: Iterable[AnalysedSnapshot] = ()
    recordings: Sequence[tuple[str, Sampled]] = ()

    @cached_property
    def stacks(self) -> ChosenStacks:
        """The stacks of the application, of one job if the diagnosis is of one."""
        return ChosenStacks(self.analysed.stacks, job=self.analysed.diagnosis.job)

    @cached_property
    def timeline(self) -> Timeline | None:
        """The timeline, of one job if the diagnosis is of one."""
        analysed = self.analysed
        if analysed.history is None or self.stacks.job_id is None:
            return analysed.timeline
        vertices, stuck = analysed.diagnosis.vertices, analysed.diagnosis.stuck
        return Timeline(analysed.history, vertices, stuck=stuck, job=self.stacks.job_id)

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The critical path that is shown."""
        return shown_path(self.analysed.diagnosis, self.timeline)

    @cached_property
    def what_if(self) -> WhatIf | None:
        """What changes would give, by a simulation of the run with this path."""
        timeline, path = self.timeline, self.critical_path
        return WhatIf(timeline.run, path) if timeline and path else None

    @property
    def profile(self) -> Profile | None:
        """The newest profile."""
        return newest(recording for _, recording in self.recordings)

    @cached_property
    def stack_ids(self) -> Mapping[Key, str]:
        """The ids of the elements that show the stacks of executions; equal stacks of a class share one."""
        numbers: dict[object, int] = {}
        return {
            one.key: f"stack-{numbers.setdefault((one.kind, one.path), len(numbers))}" for one in self.stacks.executions
        }
