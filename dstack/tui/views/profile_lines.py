"""The steps of a profile, and its source with the time of each line, as lines of an outline."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.stacks.hot_lines import HotFile, HotLine, hot_files
from dstack.analysis.stacks.iterations import Iterations, iterations_of
from dstack.analysis.stacks.profiles import ProfileInterval
from dstack.model.profile import Profile
from dstack.report.profile_text import steps_in_words
from dstack.report.rich_text import SafeText
from dstack.tui.views.base import SourceLocation
from dstack.tui.widgets.outline import Line

BAR_WIDTH = 20
OWN, BELOW = "█", "▒"
"""Of a bar: the time in which the last frame is there, and the other time of the paths through a line."""
HEIGHTS = "▁▂▃▄▅▆▇█"
MOST_COLUMNS = 100
NO_LINES = "No frame of the application was sampled."


def profile_lines(profile: Profile, within: ProfileInterval) -> Iterator[Line]:
    """The steps of its loops, and the files with the most time in an interval, each with its lines."""
    for found in iterations_of(profile):
        head, *others = steps_in_words(found)
        place: SourceLocation = (found.place.file, found.place.line)
        children = [Line(f"steps/{found.root}/bars", SafeText(_heights(found), "cyan"), data=place)]
        children += [Line(f"steps/{found.root}/{text}", SafeText(text), hanging_indent=2) for text in others]
        title = SafeText(f"Steps: {head}", "bold")
        yield Line(f"steps/{found.root}", title, children, is_open=True, data=place, hanging_indent=2)
    for file in hot_files(profile, within=within):
        title = SafeText().append(file.file, "bold").append(f"  {_percent(file, file.weight_us).strip()}", "dim")
        lines = tuple(row for line in file.lines for row in _rows(file, line))
        yield Line(f"lines/{file.file}", title, lines, is_open=True, data=(file.file, 1))


def _heights(found: Iterations) -> str:
    """A column for each of the last iterations, as high as it was long."""
    longest_us = found.longest.length_us
    return "".join(
        HEIGHTS[round(one.length_us / longest_us * (len(HEIGHTS) - 1))] for one in found.each[-MOST_COLUMNS:]
    )


def _rows(file: HotFile, line: HotLine) -> Iterator[Line]:
    """A line of source; before it a mark for those that are left out."""
    key = f"lines/{file.file}/{line.number}"
    if line.is_after_gap and line is not file.lines[0]:
        yield Line(f"{key}/gap", SafeText(" " * (22 + BAR_WIDTH) + "⋮", "dim"))
    text = SafeText().append(f"{_percent(file, line.weight_us)} {_percent(file, line.own_us)} ")
    text.append(_bar(file, line), "cyan").append(f" {line.number:>5}  ", "dim")
    text.append("not read" if line.text is None else line.text, "" if line.weight_us else "dim")
    location: SourceLocation = (file.file, line.number)
    yield Line(key, text, data=location)


def _percent(file: HotFile, weight_us: int) -> str:
    return f"{file.share(weight_us):5.1f} %" if weight_us else " " * 7


def _bar(file: HotFile, line: HotLine) -> str:
    """As wide as the share of the line; the part of its own time is solid."""
    own, whole = (round(BAR_WIDTH * file.share(one) / 100) for one in (line.own_us, line.weight_us))
    return (OWN * own + BELOW * (whole - own)).ljust(BAR_WIDTH)
