"""A time axis: round ticks for any range from microseconds to days, and times as text."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log10
from time import localtime, strftime

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from dstack.tui.widgets.gantt_cells import Window
from dstack.visible import visible

STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
WIDEST_LABEL = 12
"""Columns from one tick to the next, at least."""


class TimeAxis(Widget):
    """The ticks of a window, to the right of a title; times are relative to ``origin``."""

    DEFAULT_CSS = "TimeAxis { height: 1; color: $text-muted; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._window = Window(0.0, 1.0, 0)
        self._origin = 0.0
        self._left = 0

    def show(self, window: Window, origin: float, left: int) -> None:
        """Draw the ticks of another window, which begins at the column ``left``."""
        self._window, self._origin, self._left = window, origin, left
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The axis."""
        style = self.rich_style
        if not self._window.columns:
            return Strip.blank(self.size.width, style)
        title = f" 0 s = {clock(self._origin)}"[: self._left].ljust(self._left)
        text = visible(title) + ruler(self._window, self._origin)
        return Strip([Segment(text, style)]).adjust_cell_length(self.size.width, style)


def ruler(window: Window, origin: float) -> str:
    """The ticks of a window as one line of text."""
    line = ""
    step = tick_step(window.cell_s * WIDEST_LABEL)
    for at in ticks(window, origin, step):
        column = window.column(at)
        label = f"╵{relative(at - origin, step)}"
        if column >= len(line) and column + len(label) <= window.columns:
            line = line.ljust(column) + label
    return line.ljust(window.columns)


def ticks(window: Window, origin: float, step: float) -> Iterator[float]:
    """The times of the ticks in a window, at multiples of the step."""
    number = ceil((window.began_at - origin) / step)
    while (at := origin + number * step) < window.ended_at:
        yield at
        number += 1


def tick_step(least_s: float) -> float:
    """The smallest round number of seconds, minutes, hours or days that is not below this."""
    if least_s > STEPS_S[-1]:
        return ceil(least_s / STEPS_S[-1]) * STEPS_S[-1]
    if least_s > 1:
        return next(step for step in STEPS_S if step >= least_s)
    power = 10.0 ** ceil(log10(max(least_s, 1e-7)))
    return next(step for step in (power / 5, power / 2, power) if step >= least_s * NEARLY)


NEARLY = 0.999


def relative(seconds: float, step: float) -> str:
    """``-5 s``, ``12.35 s``, ``3:20``, ``1:05:00``: as exact as the step between two of them demands."""
    sign = "-" if seconds < -step / 2 else ""
    seconds = abs(seconds)
    digits = max(0, ceil(-log10(step) - 1e-9)) if step < 1 else 0
    if seconds < 60 or digits:
        return f"{sign}{seconds:.{digits}f} s"
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3_600
    clock_text = f"{hours}:{minutes % 60:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
    return sign + clock_text


def clock(at: float, *, digits: int = 0) -> str:
    """``14:03:22.125``: the time of day of dstack's host."""
    seconds, fraction = divmod(round(at * 10**digits), 10**digits)
    text = strftime("%H:%M:%S", localtime(seconds))
    return f"{text}.{fraction:0{digits}}" if digits else text
