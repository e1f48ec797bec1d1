"""A chart of spans: which cell each moment is in, what is drawn of several in one cell, and how the cursor moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from dstack.tui.widgets.span_chart import Span, SpanChart, SpanRow

Body = Callable[[SpanChart, Pilot[Any]], Awaitable[None]]


class ChartApp(App[None]):
    """Nothing but a chart."""

    def compose(self) -> ComposeResult:
        yield SpanChart()


def in_chart(rows: Sequence[SpanRow], times: Sequence[float], body: Body) -> None:
    async def run() -> None:
        app = ChartApp()
        async with app.run_test(size=(60, 20)) as pilot:
            chart = app.query_one(SpanChart)
            chart.show(rows, times)
            await pilot.pause()
            await body(chart, pilot)

    asyncio.run(run())


def verdicts(letters: str) -> SpanRow:
    """One span for each letter; capital letters are worse."""
    return SpanRow("verdict", [Span(at, at, one, "deadlock", int(one.isupper())) for at, one in enumerate(letters)])


@pytest.mark.parametrize("length", [0.1, 7.0, 33.3, 86_400.0])
def test_the_first_and_the_last_moment_are_in_the_outer_columns(length: float) -> None:
    async def body(chart: SpanChart, pilot: Pilot[Any]) -> None:
        first, last = 1.7e9, 1.7e9 + max(length, 1.0)
        window = chart.window
        assert (window.column(first), window.column(last)) == (0, window.columns - 1)

    in_chart([verdicts("aB")], [1.7e9, 1.7e9 + max(length, 1.0)], body)


def test_the_worst_of_several_in_one_cell_is_drawn_and_zoom_separates_them() -> None:
    async def body(chart: SpanChart, pilot: Pilot[Any]) -> None:
        assert "".join(chart.as_text().split()[1:]) == "aCe"
        await pilot.press("right", "right")
        for _ in range(16):
            chart.zoom(1.6)
        assert set("bCd") <= set(chart.as_text())
        chart.whole()
        assert "".join(chart.as_text().split()[1:]) == "aCe"

    in_chart([verdicts("abCde")], [0.0, 4_999.0, 5_000.0, 5_001.0, 9_000.0], body)


def test_a_span_is_a_line_with_a_dot_at_each_moment() -> None:
    async def body(chart: SpanChart, pilot: Pilot[Any]) -> None:
        (_, line) = chart.as_text().splitlines()
        drawn = line.removeprefix(" finding").strip()
        assert drawn.startswith("●─")
        assert drawn.count("●") == 2
        assert not drawn.startswith(" ")

    in_chart([verdicts("abC"), SpanRow("finding", [Span(1, 2, "●", "deadlock")])], [0.0, 10.0, 20.0], body)


def test_keys_and_clicks_move_the_cursor() -> None:
    async def body(chart: SpanChart, pilot: Pilot[Any]) -> None:
        for keys, place in ((["end"], (2, 0)), (["left", "down"], (1, 1)), (["down", "g"], (0, 1)), (["k"], (0, 0))):
            await pilot.press(*keys)
            assert (chart.at, chart.row) == place
        await pilot.click(SpanChart, offset=(chart.left + chart.window.columns - 2, 1))
        assert (chart.at, chart.row) == (2, 1)

    in_chart([verdicts("abC"), SpanRow("finding", [Span(0, 2, "●", "deadlock")])], [0.0, 10.0, 20.0], body)
