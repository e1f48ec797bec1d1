"""A flame graph as one HTML page, which works without a network: an icicle of rectangles, drawn by Bokeh.

Groups, such as node and class, are the first levels. The page zooms to what is clicked, and marks what is searched.
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.errors import UsageError
from dstack.report.exporters.flame_page_parts import LABELS, PAGE, RESET, SEARCH, ZOOM
from dstack.visible import visible

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource
    from bokeh.plotting import figure

MAX_BOXES = 20_000
"""The most rectangles; the narrowest ones are left out."""
ROW_PX = 20
AROUND_PX = 40
HUES = {"user": 30, "library": 130, "ray": 205, "stdlib": 265}
"""The hue of a frame by the origin of its code."""
ORIGINS = {"user": "application", "library": "library", "ray": "Ray", "stdlib": "standard library"}


@dataclass(slots=True)
class Box:
    """One rectangle: a group, or a call below the same outer calls; from ``left``, ``weight`` wide."""

    step: PathStep
    depth: int
    parent: int
    left: int
    weight: int = 0


@dataclass(slots=True)
class Boxes:
    """All rectangles of some stacks, the outer ones before the inner ones, and how many are left out."""

    total: int = 0
    boxes: list[Box] = field(default_factory=list)
    left_out: int = 0

    @property
    def levels(self) -> int:
        """The number of rows."""
        return 1 + max((box.depth for box in self.boxes), default=0)


def require_bokeh() -> None:
    """Raise :class:`UsageError` if Bokeh is not installed."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise UsageError("A flame graph page needs Bokeh.", "Install it with: pip install bokeh") from error


def flame_page(stacks: WeightedStacks, title: str, subtitle: str = "") -> bytes:
    """The page, as UTF-8. Raises :class:`UsageError` if Bokeh is not installed."""
    require_bokeh()
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    boxes = boxes_of(stacks)
    notes = [subtitle, f"{boxes.left_out:,} narrow boxes are left out" if boxes.left_out else ""]
    page = file_html(
        _layout(boxes, stacks.unit),
        INLINE,
        title=visible(title),
        template=PAGE,
        template_variables={"heading": visible(title), "subtitle": visible(". ".join(filter(None, notes)))},
        suppress_callback_warning=True,
    )
    return page.encode(errors="backslashreplace")


def boxes_of(stacks: WeightedStacks) -> Boxes:
    """The rectangles of stacks that are merged where they begin with the same groups and calls."""
    found = Boxes()
    path: list[int] = []
    names: list[PathStep] = []
    for stack in sorted(stacks.stacks, key=_path):
        steps = _path(stack)
        common = next((i for i, (a, b) in enumerate(zip(names, steps, strict=False)) if a != b), len(names))
        common = min(common, len(steps))
        del path[common:], names[common:]
        for step in steps[common:]:
            parent = path[-1] if path else -1
            found.boxes.append(Box(step, len(path), parent, found.total))
            path.append(len(found.boxes) - 1)
            names.append(step)
        for index in path:
            found.boxes[index].weight += stack.weight
        found.total += stack.weight
    return _widest(found)


def _path(stack: WeightedStack) -> list[PathStep]:
    return [*map(PathStep, stack.groups), *stack.frames]


def _widest(found: Boxes) -> Boxes:
    """The widest rectangles, at most :data:`MAX_BOXES`; one is never wider than the one above it."""
    if len(found.boxes) <= MAX_BOXES:
        return found
    order = sorted(range(len(found.boxes)), key=lambda index: (-found.boxes[index].weight, index))
    kept = sorted(order[:MAX_BOXES])
    place = {index: at for at, index in enumerate(kept)}
    boxes = [found.boxes[index] for index in kept]
    for box in boxes:
        box.parent = place.get(box.parent, -1)
    return Boxes(found.total, boxes, len(found.boxes) - len(boxes))


def _columns(boxes: Boxes, unit: str) -> dict[str, list[Any]]:
    """The data of the page by column, one entry for each rectangle."""
    total = max(1, boxes.total)
    names = [visible(box.step.name) or "(no name)" for box in boxes.boxes]
    return {
        "left": [box.left for box in boxes.boxes],
        "right": [box.left + box.weight for box in boxes.boxes],
        "top": [box.depth for box in boxes.boxes],
        "bottom": [box.depth + 0.94 for box in boxes.boxes],
        "middle": [box.depth + 0.5 for box in boxes.boxes],
        "at": [box.left for box in boxes.boxes],
        "label": [""] * len(boxes.boxes),
        "name": names,
        "place": list(_places(boxes.boxes)),
        "weight": [f"{box.weight:,} {unit}, {100 * box.weight / total:.1f} %" for box in boxes.boxes],
        "parent": [box.parent for box in boxes.boxes],
        "colour": [colour_of(box.step) for box in boxes.boxes],
        "line": ["#ffffff00"] * len(boxes.boxes),
        "alpha": [1.0] * len(boxes.boxes),
    }


def _places(boxes: Sequence[Box]) -> Iterator[str]:
    """``train.py:12 (application)``; ``group`` for a group."""
    for box in boxes:
        step = box.step
        if step.is_frame:
            where = f"{step.file}:{step.line}" if step.line else step.file
            yield f"{visible(where)} ({ORIGINS[step.origin]})"
        else:
            yield "group"


def colour_of(step: PathStep) -> str:
    """The colour of a rectangle, on which black text is readable: a hue by origin, its shade by the name."""
    shade = zlib.crc32(step.name.encode(errors="replace")) % 1000 / 1000
    if not step.is_frame:
        red, green, blue = colorsys.hls_to_rgb(0.0, 0.72 + 0.1 * shade, 0.0)
    else:
        hue = (HUES[step.origin] + 16 * shade - 8) / 360
        red, green, blue = colorsys.hls_to_rgb(hue, 0.68 + 0.12 * shade, 0.75)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _layout(boxes: Boxes, unit: str) -> Any:
    """The search field and the plot."""
    from bokeh.layouts import column, row
    from bokeh.models import ColumnDataSource, CustomJS
    from bokeh.models.widgets import Button, Div, TextInput

    source = ColumnDataSource(_columns(boxes, unit))
    plot = _plot(boxes, source)
    found = Div(text="", name="matches", styles={"padding-top": "6px"})
    search = TextInput(placeholder="search functions, files and groups", name="search", width=320)
    reset = Button(label="Reset zoom", name="reset", width=100)
    terms = {"source": source, "range": plot.x_range, "total": max(1, boxes.total)}
    labels = CustomJS(args={**terms, "plot": plot}, code=LABELS)
    plot.x_range.js_on_change("start", labels)
    plot.x_range.js_on_change("end", labels)
    plot.js_on_change("inner_width", labels)
    source.selected.js_on_change("indices", CustomJS(args=terms, code=ZOOM))
    search.js_on_change("value_input", CustomJS(args={**terms, "found": found}, code=SEARCH))
    reset.js_on_click(CustomJS(args=terms, code=RESET))
    return column(row(search, reset, found), plot, sizing_mode="stretch_width")


def _plot(boxes: Boxes, source: ColumnDataSource) -> figure:
    from bokeh.core.properties import value
    from bokeh.models import HoverTool, Range1d, TapTool
    from bokeh.plotting import figure

    plot = figure(
        x_range=Range1d(start=0, end=max(1, boxes.total)),
        y_range=Range1d(start=boxes.levels, end=0),
        height=boxes.levels * ROW_PX + AROUND_PX,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools=[],
        name="flame",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        output_backend="canvas",
    )
    plot.axis.visible = False
    plot.grid.visible = False
    quads = plot.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=source,
        fill_color="colour",
        fill_alpha="alpha",
        line_color="line",
        line_width=2,
        nonselection_fill_alpha="alpha",
        nonselection_line_alpha=1.0,
    )
    plot.text(
        x="at",
        y="middle",
        text="label",
        source=source,
        text_font_size="12px",
        text_font=value("monospace"),
        text_baseline="middle",
        x_offset=3,
        text_color="#000000",
        nonselection_text_alpha=1.0,
    )
    tips = [("", "@name"), ("", "@place"), ("", "@weight")]
    plot.add_tools(HoverTool(renderers=[quads], tooltips=tips, point_policy="follow_mouse"), TapTool(renderers=[quads]))
    return plot
