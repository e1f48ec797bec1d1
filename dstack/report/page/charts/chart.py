"""What the charts of all pages have in common: their tools, and colours that suit a light and a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import BoxZoomTool, PanTool, Range, ResetTool, SaveTool, Tool, WheelZoomTool
from bokeh.plotting import figure

Columns = Mapping[str, Sequence[Any]]
"""The data of a chart: equally long columns by name."""


def new_chart(
    name: str, height: int, x_range: Range, y_range: Range, *, zoom: str | None = "both", extra: Sequence[Tool] = ()
) -> figure:
    """An empty chart without axes, as wide as the page; ``height`` is in pixels.

    Its ``name`` is unique in the page. Users zoom and pan both axes, "width" alone, or nothing with None. The wheel
    zooms with Ctrl, so that it still scrolls the page.
    """
    chart = figure(
        name=name,
        height=height,
        x_range=x_range,
        y_range=y_range,
        sizing_mode="stretch_width",
        tools=[*_zoom_tools(zoom), *extra],
        toolbar_location="above" if zoom else None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        output_backend="canvas",
    )
    chart.toolbar.logo = None
    chart.axis.visible = False
    chart.grid.visible = False
    return chart


def _zoom_tools(zoom: str | None) -> list[Tool]:
    if zoom is None:
        return []
    dimensions: Any = zoom
    tools = (PanTool(dimensions=dimensions), BoxZoomTool(dimensions=dimensions))
    return [*tools, WheelZoomTool(dimensions=dimensions, modifiers="ctrl"), ResetTool(), SaveTool()]


def theme_colour(property_: str, variable: str) -> str:
    """A tag of a glyph's renderer: the page sets this property of the glyph to the value of a CSS variable."""
    return f"{property_}={variable}"
