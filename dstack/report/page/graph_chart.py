"""A directed graph as a chart of boxes with text and of lines with arrowheads, which the page searches; its legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, hypot, pi, sqrt
from typing import Any

from bokeh.core.properties import value
from bokeh.models import BoxZoomTool, ColumnDataSource, HoverTool, Plot, Range1d, TapTool
from rich.cells import cell_len, set_cell_size

from dstack.report.page.graph_layout import GraphLayout, layout
from dstack.report.page.section import new_chart
from dstack.words import visible, visible_lines

FONT_PX = 12.0
FONT_HEIGHT_PX = 14.0
CHARACTER_PX = 7.25
LINE_PX = 15.0
PADDING_PX = 7.0
WIDEST_LINE = 34
"""Longer lines of a box are cut; its tooltip has the whole text."""
HIGHEST_PX = 620
MARGIN_PX = 12.0
TOOLBAR_PX = 32
HEAD_PX = 9.0
DASHES = {"solid": "solid", "dashed": "9 5", "dotted": "2 4"}
"""The lengths of dashes and of the gaps between them, by their names in CSS."""
TIP = '<div style="white-space: pre-line; max-width: 460px; overflow-wrap: anywhere">@tip</div>'
"""Bokeh escapes the column's text."""


@dataclass(frozen=True, slots=True)
class BoxStyle:
    """The appearance of boxes of one kind; their text is black on ``fill``, or has the page's colour without one."""

    fill: str | None
    line: str
    width: float = 1.0
    dash: str = "solid"


@dataclass(frozen=True, slots=True)
class LinkStyle:
    """The appearance of links of one kind; ``dash`` is solid, dashed or dotted."""

    colour: str
    width: float = 1.4
    dash: str = "solid"


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A box: its title and further lines, the text of its tooltip, and the id of the element that a click goes to."""

    title: str
    lines: tuple[str, ...]
    tip: str
    style: BoxStyle
    goes_to: str | None = None


@dataclass(frozen=True, slots=True)
class GraphLink:
    """A line from one box to another, by their numbers; without an arrowhead if it ends in a label."""

    source: int
    target: int
    style: LinkStyle
    tip: str
    has_head: bool = True


def size_of(box: GraphBox) -> tuple[float, float]:
    """The width and height of a box, for its text."""
    longest = max(cell_len(line) for line in _lines(box))
    return CHARACTER_PX * longest + 2 * PADDING_PX, LINE_PX * len(_lines(box)) + 2 * PADDING_PX - 3


def _lines(box: GraphBox) -> list[str]:
    return list(shown_lines(box.title, box.lines))


def shown_lines(title: str, lines: Sequence[str]) -> tuple[str, ...]:
    """The lines of a box as they are drawn."""
    return tuple(_cut(line) for line in (title, *lines) if line)


def _cut(line: str) -> str:
    line = visible(line)
    return line if cell_len(line) <= WIDEST_LINE else f"{set_cell_size(line, WIDEST_LINE - 1).rstrip()}…"


def graph_chart(
    name: str,
    boxes: Sequence[GraphBox],
    links: Sequence[GraphLink],
    *,
    has_ellipses: bool = False,
    is_from_targets: bool = False,
) -> Plot:
    """The chart; the flags are those of :func:`dstack.report.page.graph_layout.layout`."""
    placed = layout(
        [size_of(box) for box in boxes],
        [(link.source, link.target) for link in links],
        has_ellipses=has_ellipses,
        is_from_targets=is_from_targets,
    )
    x_range, y_range = Range1d(start=0, end=placed.width), Range1d(start=placed.height, end=0)
    chart = new_chart(name, round(min(HIGHEST_PX, placed.height + 2 * MARGIN_PX + TOOLBAR_PX)), x_range, y_range)
    for tool in chart.toolbar.tools:
        if isinstance(tool, BoxZoomTool):
            tool.match_aspect = True
    _add_links(chart, links, placed)
    _add_boxes(chart, boxes, placed)
    chart.tags = [placed.width, placed.height, FONT_PX]
    return chart


def _add_links(chart: Any, links: Sequence[GraphLink], placed: GraphLayout) -> None:
    ways = [placed.routes[link.source, link.target] for link in links]
    columns = {
        "xs": [[round(x, 1) for x, _ in way] for way in ways],
        "ys": [[round(y, 1) for _, y in way] for way in ways],
        "colour": [link.style.colour for link in links],
        "width": [link.style.width for link in links],
        "dash": [DASHES[link.style.dash] for link in links],
        "alpha": [1.0] * len(links),
        "tip": [visible_lines(link.tip) for link in links],
        "source": [link.source for link in links],
        "target": [link.target for link in links],
    }
    lines = chart.multi_line(
        xs="xs",
        ys="ys",
        line_color="colour",
        line_width="width",
        line_dash="dash",
        line_alpha="alpha",
        source=ColumnDataSource(columns),
        name="links",
    )
    heads = [
        (*_head(way, HEAD_PX + link.style.width), HEAD_PX + link.style.width, link.style.colour)
        for way, link in zip(ways, links, strict=True)
        if link.has_head
    ]
    names = ("x", "y", "angle", "size", "colour")
    chart.scatter(
        x="x",
        y="y",
        angle="angle",
        size="size",
        marker="triangle",
        fill_color="colour",
        line_color="colour",
        source=ColumnDataSource({name: [head[at] for head in heads] for at, name in enumerate(names)}),
        name="heads",
    )
    chart.add_tools(HoverTool(renderers=[lines], tooltips=TIP, line_policy="interp", description="Waits and calls"))


def _head(way: Sequence[tuple[float, float]], size: float) -> tuple[float, float, float]:
    """The middle of an arrowhead whose tip is at the end of a line, and its angle."""
    (ax, ay), (bx, by) = way[-2:] if len(way) > 1 else ((way[0][0] - 1, way[0][1]), way[0])
    length = hypot(bx - ax, by - ay)
    back = size / sqrt(3) / length
    angle = atan2(-(by - ay), bx - ax) - pi / 2  # the triangle points upwards, the y axis of the chart downwards
    return round(bx - (bx - ax) * back, 1), round(by - (by - ay) * back, 1), round(angle, 3)


def _add_boxes(chart: Any, boxes: Sequence[GraphBox], placed: GraphLayout) -> None:
    sizes = [size_of(box) for box in boxes]
    centres = [placed.centres[number] for number in range(len(boxes))]
    lines = [_lines(box) for box in boxes]
    left = [x - size[0] / 2 + PADDING_PX for (x, _), size in zip(centres, sizes, strict=True)]
    top = [y - size[1] / 2 + PADDING_PX - 1 for (_, y), size in zip(centres, sizes, strict=True)]
    source = ColumnDataSource(
        {
            "x": [round(x, 1) for x, _ in centres],
            "y": [round(y, 1) for _, y in centres],
            "w": [round(width, 1) for width, _ in sizes],
            "h": [round(height, 1) for _, height in sizes],
            "left": [round(x, 1) for x in left],
            "top": [round(y, 1) for y in top],
            "below": [round(y + LINE_PX, 1) for y in top],
            "title": [one[0] for one in lines],
            "text": ["\n".join(one[1:]) for one in lines],
            "tip": [visible_lines(box.tip) for box in boxes],
            "fill": [box.style.fill or "#ffffff00" for box in boxes],
            "line": [box.style.line for box in boxes],
            "width": [box.style.width for box in boxes],
            "dash": [DASHES[box.style.dash] for box in boxes],
            "alpha": [1.0] * len(boxes),
            "goes_to": [box.goes_to for box in boxes],
        }
    )
    rects = chart.rect(
        x="x",
        y="y",
        width="w",
        height="h",
        border_radius=4,
        fill_color="fill",
        fill_alpha="alpha",
        line_color="line",
        line_width="width",
        line_dash="dash",
        line_alpha="alpha",
        nonselection_fill_alpha="alpha",
        nonselection_line_alpha="alpha",
        source=source,
        name="boxes",
    )
    for column, place, style in (("title", "top", "bold"), ("text", "below", "normal")):
        chart.text(
            x="left",
            y=place,
            text=column,
            text_font=value("monospace"),
            text_font_size=f"{FONT_PX:g}px",
            text_font_style=style,
            text_line_height=LINE_PX / FONT_HEIGHT_PX,
            text_baseline="top",
            text_color="#000000",
            text_alpha="alpha",
            nonselection_text_alpha="alpha",
            source=source,
            name="texts",
        )
    hover = HoverTool(renderers=[rects], tooltips=TIP, point_policy="follow_mouse", description="Boxes")
    chart.add_tools(hover, TapTool(renderers=[rects]))


@dataclass(frozen=True, slots=True)
class Legend:
    """The names and the appearance of the kinds of boxes and links that a graph has."""

    boxes: Sequence[tuple[str, BoxStyle]]
    links: Sequence[tuple[str, LinkStyle]]
