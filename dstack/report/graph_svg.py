"""A directed graph as SVG: boxes with text, curves with arrowheads, and a legend; for a page, or as a file of its own.

A page gives the classes of tones its colours. A file has the colours of a light page, and can be made a PNG.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from math import hypot
from typing import Literal

from rich.cells import cell_len, set_cell_size

from dstack.errors import DstackError
from dstack.report.graph_layout import GraphLayout, Point, layout
from dstack.words import visible, visible_lines

Tone = Literal["bad", "warn", "good", "info", "often", "dim", "bare"]
COLOURS: Mapping[Tone, tuple[str, str]] = {
    "bad": ("#fbdfe2", "#b00020"),
    "warn": ("#fbeccf", "#8a5300"),
    "good": ("#dcf1e1", "#1a7237"),
    "info": ("#dbe8fb", "#0b57b0"),
    "often": ("#ebe2f7", "#6a3fb0"),
    "dim": ("#eceef1", "#5c636d"),
    "bare": ("#ffffff", "#5c636d"),
}
"""The fill and the line of each tone on a light page; ``bare`` is the page itself."""
TEXT_COLOUR = "#1b1b1b"
FONT = "DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, monospace"
FONT_PX, LINE_PX, CHARACTER_PX, PADDING_PX = 12.0, 15.0, 7.25, 7.0
WIDEST_LINE = 34
"""Longer lines of a box are cut; its tooltip has the whole text."""
MARGIN_PX = 10.0
SAMPLE_WIDTH, SAMPLE_HEIGHT = 30.0, 14.0
PNG_ZOOM, LONGEST_PNG_PX = 2.0, 5_000.0
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><text y="15" font-family="{}">{}</text></svg>'


@dataclass(frozen=True, slots=True)
class BoxStyle:
    """The appearance of boxes of one kind; a ``width`` of 0 is a text without a border."""

    tone: Tone
    width: float = 1.0
    is_dotted: bool = False


@dataclass(frozen=True, slots=True)
class LinkStyle:
    """The appearance of links of one kind; ``dashes`` are those of SVG."""

    tone: Tone
    width: float = 1.4
    dashes: str = ""


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


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn, the names of the kinds of boxes and links that it has, and what is left out."""

    name: str
    boxes: Sequence[GraphBox]
    links: Sequence[GraphLink]
    box_names: Sequence[tuple[str, BoxStyle]]
    link_names: Sequence[tuple[str, LinkStyle]]
    notes: Sequence[str] = ()
    is_of_waits: bool = False


def shown_lines(title: str, lines: Sequence[str]) -> tuple[str, ...]:
    """The lines of a box as they are drawn."""
    return tuple(_cut(line) for line in (title, *lines) if line)


def _cut(line: str) -> str:
    line = visible(line)
    return line if cell_len(line) <= WIDEST_LINE else f"{set_cell_size(line, WIDEST_LINE - 1).rstrip()}…"


def size_of(box: GraphBox) -> tuple[float, float]:
    """The width and height of a box, for its text."""
    lines = shown_lines(box.title, box.lines)
    width = CHARACTER_PX * max(map(cell_len, lines)) + 2 * PADDING_PX
    return width, LINE_PX * len(lines) + 2 * PADDING_PX - 3


def svg(drawing: Drawing) -> str:
    """The graph as an element of a page; the page has its legend and its notes."""
    width, height, body = _body(drawing)
    return f"{_start(width, height)}{body}</svg>"


def svg_file(drawing: Drawing) -> str:
    """The graph with its legend as an SVG file of a light page."""
    return _file(drawing)[1]


def png_file(drawing: Drawing) -> bytes:
    """The same as PNG, with the fonts of this machine; a large graph is small in it.

    Raises :class:`DstackError` if there is no font, or if resvg-py is missing, as in an environment of conda.
    """
    try:
        import resvg_py
    except ImportError:
        raise DstackError(
            "A PNG needs resvg-py, which is missing.", "Install it with: pip install resvg-py, or write a .svg file."
        ) from None
    if resvg_py.svg_to_bytes(PROBE.format(FONT, "M")) == resvg_py.svg_to_bytes(PROBE.format(FONT, "")):
        raise DstackError(
            "A PNG needs a font, and this machine has none.", "Install fonts-dejavu-core, or write a .svg file."
        )
    longest, picture = _file(drawing)
    return resvg_py.svg_to_bytes(picture, zoom=min(PNG_ZOOM, LONGEST_PNG_PX / longest))


def _file(drawing: Drawing) -> tuple[float, str]:
    """The longest side of the file, and its text."""
    width, height, body = _body(drawing)
    legend, legend_width, legend_height = _legend(drawing, width)
    width, height = max(width, legend_width), height + legend_height
    return max(width, height), (
        f'{_start(width, height)}<rect width="100%" height="100%" fill="{COLOURS["bare"][0]}"/>{legend}'
        f'<g transform="translate(0 {legend_height:g})">{body}</g></svg>\n'
    )


def box_sample(style: BoxStyle) -> str:
    """A small box for a legend."""
    return f"{_start(SAMPLE_WIDTH, SAMPLE_HEIGHT)}{_box_sample(style)}</svg>"


def link_sample(style: LinkStyle) -> str:
    """A short line for a legend."""
    return f"{_start(SAMPLE_WIDTH, SAMPLE_HEIGHT)}{_link_sample(style)}</svg>"


def _box_sample(style: BoxStyle) -> str:
    return _rect(style, 2, 1, SAMPLE_WIDTH - 4, SAMPLE_HEIGHT - 2)


def _link_sample(style: LinkStyle) -> str:
    return f'<path {_line(style)} d="M1 {SAMPLE_HEIGHT / 2:g}h{SAMPLE_WIDTH - 2:g}"/>'


def _start(width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
        f' viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" font-size="{FONT_PX:g}">'
    )


def _legend(drawing: Drawing, width: float) -> tuple[str, float, float]:
    """The legend in rows about as wide as the graph, its width and its height."""
    samples = chain(
        ((text, _box_sample(style)) for text, style in drawing.box_names),
        ((text, _link_sample(style)) for text, style in drawing.link_names),
    )
    parts, x, y, widest = [], MARGIN_PX, MARGIN_PX, 0.0
    for text, sample in samples:
        needed = SAMPLE_WIDTH + 6 + CHARACTER_PX * cell_len(text)
        if x > MARGIN_PX and x + needed > width:
            x, y = MARGIN_PX, y + LINE_PX + 5
        parts.append(f'<g transform="translate({x:g} {y:g})">{sample}{_text(text, SAMPLE_WIDTH + 6, 11)}</g>')
        widest, x = max(widest, x + needed + MARGIN_PX), x + needed + 20
    for note in drawing.notes:
        y += LINE_PX + 5
        parts.append(_text(visible(note), MARGIN_PX, y + 11))
    return "".join(parts), widest, y + LINE_PX + 5


def _body(drawing: Drawing) -> tuple[float, float, str]:
    """The size of the graph with its margins, and its links below its boxes."""
    sizes = [size_of(box) for box in drawing.boxes]
    pairs = [(link.source, link.target) for link in drawing.links]
    placed = layout(sizes, pairs, is_of_waits=drawing.is_of_waits)
    parts = (*_links(drawing, placed), *_boxes(drawing, placed, sizes))
    body = f'<g transform="translate({MARGIN_PX:g} {MARGIN_PX:g})">{"".join(parts)}</g>'
    return round(placed.width + 2 * MARGIN_PX), round(placed.height + 2 * MARGIN_PX), body


def _links(drawing: Drawing, placed: GraphLayout) -> Iterator[str]:
    styles = list(dict.fromkeys(link.style for link in drawing.links if link.has_head))
    for number, style in enumerate(styles):
        size = _head_size(style)
        yield (
            f'<marker id="{drawing.name}-head-{number}" orient="auto" markerUnits="userSpaceOnUse" refY="{size / 2:g}"'
            f' markerWidth="{size:g}" markerHeight="{size:g}"><path class="head {style.tone}"'
            f' fill="{COLOURS[style.tone][1]}" d="M0 0L{size:g} {size / 2:g}L0 {size:g}z"/></marker>'
        )
    for link in sorted(drawing.links, key=lambda link: link.style.width):
        way: Sequence[Point] = placed.routes[link.source, link.target]
        end = ""
        if link.has_head:
            way = _shortened(way, _head_size(link.style) + 1)
            end = f' marker-end="url(#{drawing.name}-head-{styles.index(link.style)})"'
        points = [f"{x:.1f} {y:.1f}" for x, y in way]
        yield (
            f'<path data-from="{link.source}" data-to="{link.target}" {_line(link.style)}{end}'
            f' d="M{points[0]}C{" ".join(points[1:])}">{_tip(link.tip)}</path>'
        )


def _head_size(style: LinkStyle) -> float:
    return 8 + 2 * round(style.width)


def _shortened(way: Sequence[Point], length: float) -> Sequence[Point]:
    """A route that ends so much earlier, where an arrowhead begins."""
    (ax, ay), (bx, by) = next(point for point in reversed(way) if point != way[-1]), way[-1]
    share = min(0.9, length / hypot(bx - ax, by - ay))
    return (*way[:-1], (bx - (bx - ax) * share, by - (by - ay) * share))


def _line(style: LinkStyle) -> str:
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    colour = COLOURS[style.tone][1]
    return f'class="link {style.tone}" fill="none" stroke="{colour}" stroke-width="{style.width:g}"{dashes}'


def _boxes(drawing: Drawing, placed: GraphLayout, sizes: Sequence[tuple[float, float]]) -> Iterator[str]:
    for number, (box, (width, height)) in enumerate(zip(drawing.boxes, sizes, strict=True)):
        x, y = placed.centres[number]
        left, top = x - width / 2, y - height / 2
        lines = shown_lines(box.title, box.lines)
        texts = (
            _text(line, left + PADDING_PX, top + PADDING_PX + 10 + LINE_PX * row, is_bold=row == 0)
            for row, line in enumerate(lines)
        )
        shape = f"{_tip(box.tip)}{_rect(box.style, left, top, width, height)}{''.join(texts)}"
        group = f'<g class="node" data-box="{number}">{shape}</g>'
        yield f'<a href="#{escape(box.goes_to)}">{group}</a>' if box.goes_to else group


def _rect(style: BoxStyle, left: float, top: float, width: float, height: float) -> str:
    fill, line = COLOURS[style.tone]
    border = f' stroke="{line}" stroke-width="{style.width:g}"' if style.width else ""
    dots = ' stroke-dasharray="2 3"' if style.is_dotted else ""
    return (
        f'<rect class="{style.tone}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4"'
        f' fill="{fill}"{border}{dots}/>'
    )


def _text(text: str, x: float, y: float, *, is_bold: bool = False) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight} fill="{TEXT_COLOUR}">{escape(text)}</text>'


def _tip(text: str) -> str:
    return f"<title>{escape(visible_lines(text))}</title>"
