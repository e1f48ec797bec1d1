"""A Gantt chart: bars on rows, waits as marks, and the axes of time apart, so that they stay in view.

The charts are empty: the page's script makes their columns from shorter ones, and finds the bar below the pointer, as
many bars are narrower than a pixel.
"""

from __future__ import annotations

from collections.abc import Mapping

from bokeh.models import BoxZoomTool, ColumnDataSource, DatetimeAxis, DatetimeTickFormatter, LinearAxis, Plot, Range1d

from dstack.report.page.charts.chart import new_chart, theme_colour

ROW_PX = 18
AXES_PX = 58
BARS = ("left", "right", "top", "bottom", "colour", "alpha")
FAILED = ("left", "right", "top", "bottom")
MARKS = ("x", "y", "from")
CLOCK = DatetimeTickFormatter(
    microseconds="%H:%M:%S.%f",
    milliseconds="%H:%M:%S.%3N",
    seconds="%H:%M:%S",
    minsec="%H:%M:%S",
    minutes="%H:%M",
    hourmin="%H:%M",
    hours="%d %b %H:%M",
    days="%d %b",
)


def gantt_charts(key: str, rows: int, span_s: float) -> Mapping[str, Plot]:
    """The axes and the bars below them; their elements have the ids ``KEY-axes`` and ``KEY-bars``."""
    return {f"{key}-axes": _axes(f"{key}-axes", span_s), f"{key}-bars": _bars(f"{key}-bars", rows, span_s)}


def _axes(name: str, span_s: float) -> Plot:
    chart = new_chart(name, AXES_PX, Range1d(start=0, end=span_s), Range1d(start=0, end=1), zoom=None)
    chart.extra_x_ranges = {"clock": Range1d(start=0, end=1)}
    chart.min_border = 0
    chart.add_layout(LinearAxis(), "above")
    chart.add_layout(DatetimeAxis(x_range_name="clock", formatter=CLOCK.clone()), "above")
    chart.scatter([], [])  # Bokeh warns of a chart without any
    return chart


def _bars(name: str, rows: int, span_s: float) -> Plot:
    x_range = Range1d(start=0, end=span_s, bounds=(0, span_s))
    chart = new_chart(name, rows * ROW_PX, x_range, Range1d(start=rows, end=0), zoom="width")
    chart.toolbar_location = None
    chart.toolbar.active_drag = next(tool for tool in chart.toolbar.tools if isinstance(tool, BoxZoomTool))
    chart.min_border = 0
    chart.xgrid.visible = True
    source = ColumnDataSource({column: [] for column in BARS})
    chart.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=source,
        fill_color="colour",
        fill_alpha="alpha",
        line_color="colour",
        line_alpha="alpha",
    )
    failed = ColumnDataSource({column: [] for column in FAILED})
    chart.quad(  # apart, as a pattern for each bar would take a second for each 100 of them
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=failed,
        fill_color=None,
        line_color=None,
        hatch_pattern="/",
        hatch_color="#5c0010",
        hatch_scale=6,
    )
    marks = ColumnDataSource({column: [] for column in MARKS})
    lines = chart.segment(x0="from", x1="x", y0="y", y1="y", source=marks, line_width=2)
    lines.tags = [theme_colour("line_color", "--mark")]
    points = chart.scatter("x", "y", source=marks, marker="diamond", size=11)
    points.tags = [theme_colour("fill_color", "--mark"), theme_colour("line_color", "--background")]
    return chart
