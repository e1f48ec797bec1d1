"""The verdicts of several snapshots, and how long each finding lasts, as a chart over time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bokeh.models import ColumnDataSource, DatetimeAxis, HoverTool, Plot, Range1d, TapTool

from dstack.analysis.findings import verdict_of_kind
from dstack.analysis.views.snapshot_changes import FindingSpan
from dstack.diagnosis import Verdict
from dstack.report.page.charts.chart import new_chart, theme_colour
from dstack.visible import visible

MAX_SPANS = 12
"""The most findings in the chart; those that last longest are shown."""
ROW_PX = 36
AROUND_PX = 80
MARGIN = 0.03
"""The space at both ends, as a part of the time shown."""
STYLES: dict[Verdict, tuple[str, str]] = {
    "deadlock": ("hex", "#d9364c"),
    "hang": ("square", "#d9364c"),
    "stalled": ("triangle", "#c77d00"),
    "blocked": ("diamond", "#3a7fd5"),
    "clear": ("star", "#2e9d55"),
}
"""The marker and the colour of each verdict."""


def past_chart(name: str, taken_at: Sequence[float], verdicts: Sequence[Verdict], spans: Sequence[FindingSpan]) -> Plot:
    """A row of verdicts, one for each snapshot, and a row for each finding from its first to its last snapshot."""
    times = [_local_ms(one) for one in taken_at]
    longest = sorted(spans, key=lambda span: span.first - span.last)[:MAX_SPANS]
    shown = [span for span in spans if span in longest]
    late = [(span, times[span.first] > (times[0] + times[-1]) / 2) for span in shown]
    margin = max(1000.0, MARGIN * (times[-1] - times[0]))
    x_range = Range1d(start=times[0] - margin, end=times[-1] + margin)
    y_range = Range1d(start=len(shown) + 0.8, end=-0.6)
    chart = new_chart(name, AROUND_PX + ROW_PX * (1 + len(shown)), x_range, y_range, zoom="width")
    chart.add_layout(DatetimeAxis(), "below")
    bars = chart.hbar(
        left="first",
        right="last",
        y="row",
        height=0.24,
        fill_color="colour",
        line_color="colour",
        line_width=4,
        source=ColumnDataSource(
            {
                "first": [times[span.first] for span in shown],
                "last": [times[span.last] for span in shown],
                "row": [float(row) for row in range(1, len(shown) + 1)],
                "colour": [STYLES[verdict_of_kind(span.kind)][1] for span in shown],
                "text": [visible(f"{span.kind}: {span.summary}") for span in shown],
                "label_at": [times[span.last if is_late else span.first] for span, is_late in late],
                "align": ["right" if is_late else "left" for _, is_late in late],
            }
        ),
    )
    labels = chart.text(
        x="label_at",
        y="row",
        text="text",
        text_align="align",
        y_offset=-8,
        text_font_size="12px",
        source=bars.data_source,
    )
    labels.tags = [theme_colour("text_color", "--text")]
    marks = chart.scatter(
        x="time",
        y=0.0,
        size=16,
        marker="marker",
        fill_color="colour",
        line_color="colour",
        nonselection_fill_alpha=1.0,
        source=ColumnDataSource(
            {
                "time": times,
                "marker": [STYLES[verdict][0] for verdict in verdicts],
                "colour": [STYLES[verdict][1] for verdict in verdicts],
                "text": [f"{number}: {verdict}" for number, verdict in enumerate(verdicts, 1)],
            }
        ),
    )
    chart.add_tools(HoverTool(renderers=[bars, marks], tooltips=[("", "@text")]), TapTool(renderers=[marks]))
    return chart


def _local_ms(unix_s: float) -> float:
    """What Bokeh shows as the local time of this machine, since it knows no time zones."""
    return (unix_s + time.localtime(unix_s).tm_gmtoff) * 1000
