"""The page around its sections: one file that requests nothing, and runs no script but its own.

Data is in elements that browsers do not execute. The Content-Security-Policy allows the page's scripts by their hashes,
so no text of a cluster can run, wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache

from bokeh.embed import json_item
from bokeh.resources import Resources
from markupsafe import Markup

from dstack.report.page.data_element import data_element
from dstack.report.page.section import Section, asset, render


def document(title: str, heading: Markup, sections: Sequence[Section]) -> bytes:
    """A whole page, as UTF-8: the heading, links to the sections, and the sections."""
    scripts = [_bokeh(), _own_script(sections)]
    page = render(
        "page.html",
        title=title,
        heading=heading,
        sections=sections,
        policy=_policy(scripts),
        style=Markup(asset("page.css")),
        scripts=[Markup(script) for script in scripts],
        charts=[_chart(element, plot) for one in sections for element, plot in one.charts.items()],
    )
    return page.encode(errors="backslashreplace")


def _chart(element: str, plot: object) -> Markup:
    return data_element(json_item(plot, element), "chart")  # type: ignore[arg-type]


@cache
def _bokeh() -> str:
    return str(Resources(mode="inline", components=["bokeh"]).js_raw[0])


def _own_script(sections: Sequence[Section]) -> str:
    names = dict.fromkeys(one.script for one in sections if one.script)
    return "\n".join(["'use strict';", asset("page.js"), *map(asset, names), "drawCharts();"])


def _policy(scripts: Sequence[str]) -> Markup:
    """Bokeh makes elements with styles, which the policy has to allow; a style loads nothing and runs nothing."""
    return Markup(
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
